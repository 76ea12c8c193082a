"""Find the layers and roles that need more bits by a screening design, and allocate bits to them."""
