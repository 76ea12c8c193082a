"""Learners define one training step: for weights that all workers share, or for weights of each worker."""
