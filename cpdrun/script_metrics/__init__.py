"""Read the metrics of a user's script from its output and from the files that it writes."""
