"""Find the layers and roles that need more bits with a screening design, and allocate bits to layers and roles."""
