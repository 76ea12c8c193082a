"""From run directories to what is compared with what."""
