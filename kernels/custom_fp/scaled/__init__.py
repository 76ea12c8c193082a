"""The arithmetic of scaled formats: a reference in PyTorch, and compiled backends that give the same bits."""
