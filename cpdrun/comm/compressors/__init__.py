"""A layer in few bytes."""
