"""Networks whose normalisation is a choice."""
