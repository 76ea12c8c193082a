"""Simulate a configuration on the tensors that a run observed."""
