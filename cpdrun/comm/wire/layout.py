"""Which bytes of which message hold which elements: shards -> segments -> pieces.

A slice that a rank owns is packed by itself, 8 k-bit codes in k bytes, its last block filled up; a shard is a rank's
slices one after the other, and is cut in segments, the unit of a message. A piece is what a segment holds of one layer.
Shards that are shorter than the longest are padded: messages of one size, none empty, for any number of values.

Where nobody keeps a shard, all layers' blocks in a row are cut in shards of equal size.
"""

from dataclasses import dataclass
from functools import cached_property

from cpdrun.comm.wire.cut import BYTE, Cut, Slice, even
from cpdrun.comm.wire.piece import Piece, ceil_div


@dataclass(frozen=True)
class Layout:
    """numels: elements of each layer, not all 0; ranks: P; segment_values: the most values in a message; cut: what each
    rank owns, None: equal shards."""

    numels: tuple[int, ...]
    bits: int
    ranks: int
    segment_values: int
    cut: Cut | None = None

    @cached_property
    def slices(self) -> tuple[tuple[Slice, ...], ...]:
        """Of each rank."""
        return (self.cut or even(self.numels, self.ranks, BYTE)).slices

    @cached_property
    def shard_blocks(self) -> int:
        """Of the longest."""
        return max(sum(_blocks(part) for part in owned) for owned in self.slices)

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

    def scattered_bytes(self, local_workers: int = 1) -> int:
        """What a rank sends of its workers' payloads, to the other owners."""
        return (self.ranks - 1) * self.shard_bytes * local_workers

    @property
    def gathered_bytes(self) -> int:
        """What a rank sends of its own shard, to the other ranks."""
        return (self.ranks - 1) * self.shard_bytes

    def sent_bytes(self, local_workers: int = 1) -> int:
        """Both."""
        return self.scattered_bytes(local_workers) + self.gathered_bytes

    @cached_property
    def pieces(self) -> list[list[list[Piece]]]:
        """Of each segment of each shard."""
        return [self._cut(owned) for owned in self.slices]

    @cached_property
    def last_layers(self) -> list[int]:
        """Of each segment, the last layer that it or one before holds a piece of, of any shard."""
        found, last = [], 0
        for t in range(self.segments):
            last = max([last, *(piece.layer for shard in self.pieces for piece in shard[t])])
            found.append(last)
        return found

    def _cut(self, owned: tuple[Slice, ...]) -> list[list[Piece]]:
        segments: list[list[Piece]] = [[] for _ in range(self.segments)]
        block = 0  # of the shard
        for layer, start, stop in owned:
            while start < stop:
                segment, place = divmod(block, self.segment_blocks)
                end = min(stop, start + (self.segment_blocks - place) * 8)
                piece = Piece(layer, start, end, ceil_div(end - start, 8) * self.bits, place * self.bits)
                segments[segment].append(piece)
                block += ceil_div(end - start, 8)
                start = end
        return segments


def _blocks(part: Slice) -> int:
    return ceil_div(part.stop - part.start, 8)
