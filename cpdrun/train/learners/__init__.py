"""Learners, which define one training step. The workers have common weights, or each worker has its own weights."""
