"""Recipes: rules for what of a network is rounded, to which format and how, and what they make of a model."""
