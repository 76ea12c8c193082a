"""Record statistics of a run's tensors at some steps, without changing the run."""
