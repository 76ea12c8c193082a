"""This machine: its cores and GPUs, what it lacks, how fast it is."""
