"""Statistics of runs as pure functions: numbers in, numbers out; each names its source. No torch, no pandas."""
