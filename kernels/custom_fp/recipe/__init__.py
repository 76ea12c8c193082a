"""Recipes: rules that specify which tensors of a model are rounded and how, and code that applies them to a model."""
