"""Compression of layers into messages of few bytes."""
