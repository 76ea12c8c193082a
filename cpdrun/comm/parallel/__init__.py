"""Workers that share one model."""
