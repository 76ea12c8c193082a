"""Facts about single runs: the curve, whether the run learned, its observed tensors, and settings without effect."""
