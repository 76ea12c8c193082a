"""Messages between ranks: their layout, their transport, and the detection of lost ranks."""

from enum import IntEnum


class Tag(IntEnum):
    """Tags of point-to-point messages. A message with one tag never matches a receive with another."""

    TO_OWNER = 71  # a segment of a worker's gradient, to the rank that adds it
    TO_ALL = 72  # a segment of the sum, from that rank to all others
    PROBE = 73  # never sent; a receive tests whether a connection is open
    HANG_UP = 74  # never sent; a receive that times out closes the connection
    PIECES_TO_OWNER = 75  # like TO_OWNER, in formats with scales
    PIECES_TO_ALL = 76  # like TO_ALL, in formats with scales
    PARTS = 77  # the parts of a tensor that is split over the workers of one model
    NEIGHBOURS = 78  # a worker's whole message, to its neighbors
    MEASURED = 79  # used for time measurements only
