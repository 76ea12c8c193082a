"""Checks before a run starts: its parts, its first sample, the products that rules reach, and this machine."""
