"""How N gradients become one: the order and rounding of a sum, its scaling, in one process and between ranks."""
