"""Compute the effects of a configuration on the tensors that a run observed."""
