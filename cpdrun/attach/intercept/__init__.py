"""Intercept what a training script does with gradients, layers, and the models that it saves and loads."""
