"""Optimizers that torch lacks, and learning-rate schedules."""
