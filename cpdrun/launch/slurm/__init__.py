"""Everything that knows Slurm."""
