"""Interception of a training script: its gradients, its layers, and the models that it saves and loads."""
