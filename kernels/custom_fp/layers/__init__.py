"""Layers of networks whose products are rounded: linear and convolutional, attention, embeddings."""
