"""Layers whose products are rounded: linear and convolutional layers, attention and embeddings."""
