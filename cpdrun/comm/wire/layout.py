"""Which bytes of which message hold which elements: layers -> shards -> segments -> pieces.

Every layer is a row of blocks of 8 values (its last one filled up), 8 k-bit codes in k bytes. All layers'
blocks in a row are cut in P shards of equal size, one per rank, which adds it up; a shard is cut in
segments, the unit of a message. A piece is what a segment holds of one layer. Shards past the end of the
data are padding: messages of one size, none empty, for any number of values.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from cpdrun.comm.wire.piece import Piece, ceil_div


@dataclass(frozen=True)
class Layout:
    """numels: elements of each layer, not all 0; ranks: P; segment_values: the most values in a message."""

    numels: tuple[int, ...]
    bits: int
    ranks: int
    segment_values: int

    @cached_property
    def first_blocks(self) -> list[int]:
        """Where each layer begins, in blocks, and where the last one ends."""
        return [0, *accumulate(ceil_div(numel, 8) for numel in self.numels)]

    @cached_property
    def shard_blocks(self) -> int:
        return ceil_div(self.first_blocks[-1], self.ranks)

    @cached_property
    def segment_blocks(self) -> int:
        return min(max(1, self.segment_values // 8), self.shard_blocks)

    @property
    def segments(self) -> int:
        return ceil_div(self.shard_blocks, self.segment_blocks)

    def segment_bytes(self, segment: int) -> int:
        """Length of the message that holds a segment for one worker."""
        first = segment * self.segment_blocks
        return (min(first + self.segment_blocks, self.shard_blocks) - first) * self.bits

    @property
    def shard_bytes(self) -> int:
        return self.shard_blocks * self.bits

    def sent_bytes(self, local_workers: int = 1) -> int:
        """What a rank sends: its workers' payloads to the other owners, its own sum to the other ranks."""
        return (self.ranks - 1) * self.shard_bytes * (local_workers + 1)

    @cached_property
    def pieces(self) -> list[list[list[Piece]]]:
        """Of each segment of each shard."""
        return [[self._cut(shard, t) for t in range(self.segments)] for shard in range(self.ranks)]

    def _cut(self, shard: int, segment: int) -> list[Piece]:
        first = shard * self.shard_blocks + segment * self.segment_blocks
        end = min(first + self.segment_blocks, (shard + 1) * self.shard_blocks, self.first_blocks[-1])
        pieces, block = [], first
        while block < end:
            layer = bisect_right(self.first_blocks, block) - 1
            stop_block = min(end, self.first_blocks[layer + 1])
            start, stop = ((b - self.first_blocks[layer]) * 8 for b in (block, stop_block))
            size, byte = (stop_block - block) * self.bits, (block - first) * self.bits
            pieces.append(Piece(layer, start, min(stop, self.numels[layer]), size, byte))
            block = stop_block
        return pieces
