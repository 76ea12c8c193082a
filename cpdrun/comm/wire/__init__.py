"""Messages between ranks: their layout, their transport, and the detection of lost ranks."""

from enum import IntEnum


class Tag(IntEnum):
    """Tags of point-to-point messages. A message only matches a receive with the same tag."""

    TO_OWNER = 71  # a segment of a worker's gradient, sent to the owner, which adds it
    TO_ALL = 72  # a segment of the sum, sent from the owner to all other ranks
    PROBE = 73  # never sent. A receive with this tag tests whether a connection is open.
    HANG_UP = 74  # never sent. A receive with this tag times out, which closes the connection.
    PIECES_TO_OWNER = 75  # like TO_OWNER, in formats with scales
    PIECES_TO_ALL = 76  # like TO_ALL, in formats with scales
    PARTS = 77  # parts of a tensor in model parallelism
    NEIGHBOURS = 78  # a worker's whole message, sent to its neighbors
    ROWS = 80  # rows of a tensor, such as tokens for the experts on another rank
    MEASURED = 79  # a message that is only sent to measure time
