"""Gossip: each worker has its own weights and averages them with those of its neighbors."""
