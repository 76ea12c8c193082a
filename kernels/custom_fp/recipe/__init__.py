"""Recipes: which tensors of a model are rounded, to which format and how, and how a model follows them."""
