"""Datasets of images."""
