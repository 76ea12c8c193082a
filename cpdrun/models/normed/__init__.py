"""Networks with a choice of normalization layer."""
