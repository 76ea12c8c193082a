"""Elements of a layer in a row, and where they lie in a message.

Who owns which elements: layers cut in shards, for sums that stay with their owners and for the messages of others.

    even      all layers in one row, cut in shards of equal size, each layer between granules of so many values
    by_rows   each layer along its first dimension, as FSDP2 cuts parameters (torch.chunk): the last shards of one may
              be smaller or empty

An owner's slices are in the order of layers, and of each layer it has at most one.

Which bytes of which message hold which elements: shards -> segments -> pieces.

A slice that a rank owns is packed by itself, 8 k-bit codes in k bytes, its last block filled up; a shard is a rank's
slices one after the other, and is cut in segments, the unit of a message. A piece is what a segment holds of one layer.
Shards that are shorter than the longest are padded: messages of one size, none empty, for any number of values.

Where nobody keeps a shard, all layers' blocks in a row are cut in shards of equal size.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from torch import Tensor


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class PackedSlice:
    """Elements [start, stop) of a layer, packed by themselves to `size` bytes, at `byte` of the message."""

    layer: int
    start: int
    stop: int
    size: int
    byte: int = 0

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def of(self, message: Tensor) -> Tensor:
        """The piece's bytes in a (B,) message."""
        return message[self.byte : self.byte + self.size]

    def part(self, start: int, stop: int) -> slice:
        """Where elements [start, stop) of the layer lie in the piece's bytes, of a format without scales; start is a
        multiple of 8."""
        bits = self.size // ceil_div(self.numel, 8)
        return slice((start - self.start) // 8 * bits, ceil_div(stop - self.start, 8) * bits)


def assign_to_owners(pieces: Iterable[PackedSlice], ranks: int) -> tuple[tuple[PackedSlice, ...], ...]:
    """The pieces of each owner, one after the other in a message to it: the largest is dealt first, each to the owner
    with the least so far."""
    loads = [0] * ranks
    dealt: list[list[PackedSlice]] = [[] for _ in range(ranks)]
    for piece in sorted(pieces, key=lambda piece: -piece.numel):
        owner = loads.index(min(loads))
        loads[owner] += piece.numel
        dealt[owner].append(piece)
    return tuple(tuple(_in_a_row(sorted(of_owner, key=lambda p: (p.layer, p.start)))) for of_owner in dealt)


def _in_a_row(pieces: Iterable[PackedSlice]) -> Iterable[PackedSlice]:
    byte = 0
    for piece in pieces:
        yield replace(piece, byte=byte)
        byte += piece.size


BLOCK = 8
"""Values that begin and end on a byte in any format."""

GRANULE = 64
"""Values of a granule that a processor's elementwise loops treat alike, wherever in its layer it begins: whole vectors.
So what an optimizer makes of an element does not depend on the shard that it lies in."""


class Slice(NamedTuple):
    """Elements [start, stop) of a layer in a row; not empty."""

    layer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Sharding:
    """The slices of each owner."""

    slices: tuple[tuple[Slice, ...], ...]

    @property
    def owners(self) -> int:
        return len(self.slices)

    def by_rank(self, ranks: int) -> "Sharding":
        """What the owners that each rank plays own: consecutive ones, so of a layer one slice again."""
        share = self.owners // ranks
        if share == 1:
            return self
        merged = []
        for rank in range(ranks):
            spans: dict[int, Slice] = {}
            for owner in range(rank * share, (rank + 1) * share):
                for part in self.slices[owner]:
                    before = spans.get(part.layer, part)
                    spans[part.layer] = Slice(part.layer, before.start, part.stop)
            merged.append(tuple(spans.values()))
        return Sharding(tuple(merged))

    def owned_by(self, owner: int, layers: int) -> list[slice]:
        """Of each of so many layers what the owner has, an empty slice where it has nothing."""
        owned = {part.layer: slice(part.start, part.stop) for part in self.slices[owner]}
        return [owned.get(layer, slice(0, 0)) for layer in range(layers)]

    def select(self, chosen: Collection[int]) -> "Sharding":
        """Of these layers alone, which are numbered anew from 0."""
        number = {layer: k for k, layer in enumerate(chosen)}
        return Sharding(
            tuple(
                tuple(part._replace(layer=number[part.layer]) for part in owned if part.layer in number)
                for owned in self.slices
            )
        )


def shard_evenly(numels: Sequence[int], owners: int, granule: int) -> Sharding:
    """Shards of as many bytes as whole granules allow; the last may be smaller or empty. granule: a multiple of 8."""
    firsts = [0, *accumulate(ceil_div(numel, BLOCK) for numel in numels)]
    shard = ceil_div(firsts[-1], owners)
    ends = [_nearest(firsts, min(owner * shard, firsts[-1]), granule // BLOCK) for owner in range(owners + 1)]

    def owned(first: int, end: int) -> Iterator[Slice]:
        for layer, ((begin, stop), numel) in enumerate(zip(pairwise(firsts), numels, strict=True)):
            start, past = max(first, begin) - begin, min(end, stop) - begin
            if start < past:
                yield Slice(layer, start * BLOCK, min(past * BLOCK, numel))

    return Sharding(tuple(tuple(owned(*span)) for span in pairwise(ends)))


def _nearest(firsts: Sequence[int], block: int, granule: int) -> int:
    """To a block of all layers in a row, where a layer may be cut: at its ends and between granules of so many blocks.
    firsts: where layers begin, and the last one ends."""
    layer = min(bisect_right(firsts, block), len(firsts) - 1) - 1
    before = (block - firsts[layer]) // granule * granule + firsts[layer]
    after = min(before + granule, firsts[layer + 1])
    return before if block - before <= after - block else after


def padded_numel(shape: Sequence[int], owners: int) -> int:
    """Elements of one owner's rows, the last rows filled up; a scalar is a row."""
    rows, rest = (shape[0], prod(shape[1:])) if len(shape) else (1, 1)
    return ceil_div(rows, owners) * rest


def shard_by_rows(shapes: Sequence[Sequence[int]], owners: int) -> Sharding:
    """As FSDP2 cuts: ceil(rows / owners) rows each, until there are no more."""

    def owned(owner: int) -> tuple[Slice, ...]:
        spans = ((layer, padded_numel(shape, owners), prod(shape)) for layer, shape in enumerate(shapes))
        return tuple(
            Slice(layer, owner * of_one, min((owner + 1) * of_one, numel))
            for layer, of_one, numel in spans
            if owner * of_one < numel
        )

    return Sharding(tuple(owned(owner) for owner in range(owners)))


@dataclass(frozen=True)
class Layout:
    """numels: elements of each layer, not all 0; ranks: P; segment_values: the most values in a message; cut: what each
    rank owns, None: equal shards."""

    numels: tuple[int, ...]
    bits: int
    ranks: int
    segment_values: int
    sharding: Sharding | None = None

    @cached_property
    def slices(self) -> tuple[tuple[Slice, ...], ...]:
        """Of each rank."""
        return (self.sharding or shard_evenly(self.numels, self.ranks, BLOCK)).slices

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
    def pieces(self) -> list[list[list[PackedSlice]]]:
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

    def _cut(self, owned: tuple[Slice, ...]) -> list[list[PackedSlice]]:
        segments: list[list[PackedSlice]] = [[] for _ in range(self.segments)]
        block = 0  # of the shard
        for layer, start, stop in owned:
            while start < stop:
                segment, place = divmod(block, self.segment_blocks)
                end = min(stop, start + (self.segment_blocks - place) * 8)
                piece = PackedSlice(
                    layer, start, end, ceil_div(end - start, 8) * self.bits, place * self.bits
                )
                segments[segment].append(piece)
                block += ceil_div(end - start, 8)
                start = end
        return segments


def _blocks(part: Slice) -> int:
    return ceil_div(part.stop - part.start, 8)
