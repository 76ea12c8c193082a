"""What any format, scaling and order would have made of what was seen."""
