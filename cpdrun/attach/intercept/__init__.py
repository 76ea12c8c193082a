"""Intercept what a training script does: its gradients, its layers, and the models that it saves and loads."""
