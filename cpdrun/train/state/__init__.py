"""What a run leaves and takes up again."""
