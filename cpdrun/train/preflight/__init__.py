"""Check a run's parts, first sample, products that rules apply to, and machine before the run starts."""
