"""Record statistics of a run's tensors in a few steps, without changing the run."""
