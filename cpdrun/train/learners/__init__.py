"""What the training loop moves: one set of weights, or one of each worker."""
