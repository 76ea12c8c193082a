"""Checks before a run starts: its parts, its first sample, the products that rules apply to, and this machine."""
