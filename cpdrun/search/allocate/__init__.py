"""Measure which layers need more bits, and allocate bits to layers."""
