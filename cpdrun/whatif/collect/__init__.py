"""Record statistics of a run's tensors in some of its steps, without changing the run."""
