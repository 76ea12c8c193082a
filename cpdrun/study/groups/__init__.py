"""Groups of runs that differ only in their seed, their baselines, and the verdicts on them."""
