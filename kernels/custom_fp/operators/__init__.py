"""The operators: their table, the checks of their arguments, their registration with PyTorch, and their vmap rules."""
