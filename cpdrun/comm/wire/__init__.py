"""Bytes between ranks: how they are laid out and moved, and which rank is gone when they do not come."""
