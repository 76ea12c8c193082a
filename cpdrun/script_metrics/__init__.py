"""Read the metrics of a user's script: in what it prints, in files that it writes, and again in stored output."""
