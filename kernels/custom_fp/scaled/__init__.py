"""The arithmetic of scaled formats: a reference implementation in PyTorch, and compiled backends with the same bits."""
