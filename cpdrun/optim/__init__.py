"""Optimizers that torch does not have, and learning-rate schedules."""
