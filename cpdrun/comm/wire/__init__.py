"""Bytes between ranks: how they are laid out and moved, and which rank is gone when they do not come.

What a message between two ranks is: messages of one tag never meet receives of another.
"""

from enum import IntEnum


class Tag(IntEnum):
    TO_OWNER = 71  # a segment of a worker's gradient, to the rank that adds it up
    TO_ALL = 72  # a segment of the sum, from that rank
    PROBE = 73  # nobody sends with it: to see whether a connection stands
    HANG_UP = 74  # nor with this: to close one
    PIECES_TO_OWNER = 75  # the same two of sums in formats with scales
    PIECES_TO_ALL = 76
    PARTS = 77  # what workers that share a model hold of a tensor
    NEIGHBOURS = 78  # a worker's whole message, to those it gossips with or that decode it
    MEASURED = 79  # nothing that matters: how long does it take?
