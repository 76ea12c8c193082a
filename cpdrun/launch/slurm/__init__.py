"""The executor for Slurm, and all other code that depends on Slurm."""
