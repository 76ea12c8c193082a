"""Training in shards: gradients that stay with their owners, and weights that owners send in few bits."""
