"""Compute what a configuration would do to the tensors that a run observed."""
