"""The layout of messages, which determines the position of each element in the messages of an exchange.

A `Sharding` defines which rank owns which slices of the layers. There are two kinds:

    shard_evenly    All layers form one sequence, which is divided into shards of equal size. A layer is only divided at
                    the boundaries of granules, which are blocks of a fixed number of values.
    shard_by_rows   Each layer is divided along its first dimension, as in FSDP2 (torch.chunk). The last shards of a
                    layer may be smaller or empty.

A `Layout` divides shards into messages. Each slice is packed separately, in blocks of 8 k-bit codes, which take k
bytes, and its last block is padded. A shard is the sequence of a rank's slices. A shard is divided into segments, and
each segment is one message. A segment contains at most one `PackedSlice` of each slice. Shorter shards are padded, so
that the messages of all ranks have the same size and no message is empty, for any number of values.
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
    """Consecutive elements of a layer, and their position in a message.

    Attributes:
        layer: The index of the layer.
        start: The index of the first element.
        stop: The index after the last element.
        size: The number of bytes of the packed elements.
        byte: The position of the first byte in the message.
    """

    layer: int
    start: int
    stop: int
    size: int
    byte: int = 0

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def of(self, message: Tensor) -> Tensor:
        """Return the slice's bytes in a message of shape (B,)."""
        return message[self.byte : self.byte + self.size]

    def part(self, start: int, stop: int) -> slice:
        """Return the range of bytes, relative to this slice, that contains the layer's elements [start, stop).

        The format must not have scales, and `start` must be a multiple of 8.
        """
        bits = self.size // ceil_div(self.numel, 8)
        return slice((start - self.start) // 8 * bits, ceil_div(stop - self.start, 8) * bits)


def assign_to_owners(pieces: Iterable[PackedSlice], ranks: int) -> tuple[tuple[PackedSlice, ...], ...]:
    """Distribute slices evenly over owners.

    The largest slice is assigned first. Each slice goes to the owner with the fewest elements so far. The slices of an
    owner are placed one after the other in its message.
    """
    loads = [0] * ranks
    assigned: list[list[PackedSlice]] = [[] for _ in range(ranks)]
    for piece in sorted(pieces, key=lambda piece: -piece.numel):
        owner = loads.index(min(loads))
        loads[owner] += piece.numel
        assigned[owner].append(piece)
    return tuple(
        tuple(_in_a_row(sorted(of_owner, key=lambda p: (p.layer, p.start)))) for of_owner in assigned
    )


def _in_a_row(pieces: Iterable[PackedSlice]) -> Iterable[PackedSlice]:
    byte = 0
    for piece in pieces:
        yield replace(piece, byte=byte)
        byte += piece.size


BLOCK = 8
"""The number of values in a block. In any format, a block fills whole bytes."""

GRANULE = 64
"""The number of values in a granule. It is a multiple of the vector length in the processor's elementwise loops.

Therefore, elementwise loops process an element of a granule in the same way, wherever the granule begins, and an
optimizer's result for an element does not depend on the shard that contains the element.
"""


class Slice(NamedTuple):
    """The elements [start, stop) of a flattened layer. A slice is not empty."""

    layer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Sharding:
    """The slices of each owner, in the order of layers. An owner has at most one slice of a layer."""

    slices: tuple[tuple[Slice, ...], ...]

    @property
    def owners(self) -> int:
        return len(self.slices)

    def by_rank(self, ranks: int) -> "Sharding":
        """Return the sharding among ranks, each of which has an equal number of consecutive owners.

        The slices of consecutive owners are adjacent and are merged, so a rank has at most one slice of each layer.
        """
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
        """Return an owner's slice of each layer. A slice is empty if the owner has no element of the layer."""
        owned = {part.layer: slice(part.start, part.stop) for part in self.slices[owner]}
        return [owned.get(layer, slice(0, 0)) for layer in range(layers)]

    def select(self, chosen: Collection[int]) -> "Sharding":
        """Return the sharding of the chosen layers. In the result, these are numbered from 0."""
        number = {layer: k for k, layer in enumerate(chosen)}
        return Sharding(
            tuple(
                tuple(part._replace(layer=number[part.layer]) for part in owned if part.layer in number)
                for owned in self.slices
            )
        )


def shard_evenly(numels: Sequence[int], owners: int, granule: int) -> Sharding:
    """Divide layers into shards of nearly equal size.

    Args:
        numels: The number of elements of each layer.
        owners: The number of shards.
        granule: Layers are divided only at multiples of this number of elements. It must be a multiple of 8.

    Returns:
        The sharding. The last shards may be smaller or empty.
    """
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
    """Return the allowed shard boundary that is nearest to a block.

    A shard may end at the end of a layer or, inside a layer, at a boundary between granules. All numbers are
    in units of blocks. `firsts` contains the first block of each layer, and the end of the last layer.
    """
    layer = min(bisect_right(firsts, block), len(firsts) - 1) - 1
    before = (block - firsts[layer]) // granule * granule + firsts[layer]
    after = min(before + granule, firsts[layer + 1])
    return before if block - before <= after - block else after


def padded_numel(shape: Sequence[int], owners: int) -> int:
    """Return the number of elements in one owner's rows, including padding. A scalar counts as one row."""
    rows, rest = (shape[0], prod(shape[1:])) if len(shape) else (1, 1)
    return ceil_div(rows, owners) * rest


def shard_by_rows(shapes: Sequence[Sequence[int]], owners: int) -> Sharding:
    """Divide each layer as FSDP2 does, with ceil(rows / owners) rows per owner. The last owners have fewer or none."""

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
    """The positions of all elements in the messages of an exchange.

    Attributes:
        numels: The number of elements of each layer. At least one is not 0.
        bits: The number of bits per value.
        ranks: The number of ranks.
        segment_values: The largest number of values in a message.
        sharding: The slices that each rank owns. None divides all layers into equal shards.
    """

    numels: tuple[int, ...]
    bits: int
    ranks: int
    segment_values: int
    sharding: Sharding | None = None

    @cached_property
    def slices(self) -> tuple[tuple[Slice, ...], ...]:
        """The slices of each rank."""
        return (self.sharding or shard_evenly(self.numels, self.ranks, BLOCK)).slices

    @cached_property
    def shard_blocks(self) -> int:
        """The number of blocks of the longest shard."""
        return max(sum(_blocks(part) for part in owned) for owned in self.slices)

    @cached_property
    def segment_blocks(self) -> int:
        return min(max(1, self.segment_values // 8), self.shard_blocks)

    @property
    def segments(self) -> int:
        return ceil_div(self.shard_blocks, self.segment_blocks)

    def segment_bytes(self, segment: int) -> int:
        """Return the length of the message that contains one worker's segment."""
        first = segment * self.segment_blocks
        return (min(first + self.segment_blocks, self.shard_blocks) - first) * self.bits

    @property
    def shard_bytes(self) -> int:
        return self.shard_blocks * self.bits

    def scattered_bytes(self, local_workers: int = 1) -> int:
        """Return the bytes of gradients that a rank sends to the other owners."""
        return (self.ranks - 1) * self.shard_bytes * local_workers

    @property
    def gathered_bytes(self) -> int:
        """The number of bytes that a rank sends to the other ranks when it sends them its own shard."""
        return (self.ranks - 1) * self.shard_bytes

    def sent_bytes(self, local_workers: int = 1) -> int:
        """Return the bytes that a rank sends in a reduce-scatter and an all-gather."""
        return self.scattered_bytes(local_workers) + self.gathered_bytes

    @cached_property
    def pieces(self) -> list[list[list[PackedSlice]]]:
        """The packed slices: `pieces[shard][segment]` is the list of the slices in a segment of a shard."""
        return [self._cut(owned) for owned in self.slices]

    @cached_property
    def last_layers(self) -> list[int]:
        """For each segment, the largest index of a layer in this and all earlier segments of all shards."""
        found, last = [], 0
        for t in range(self.segments):
            last = max([last, *(piece.layer for shard in self.pieces for piece in shard[t])])
            found.append(last)
        return found

    def _cut(self, owned: tuple[Slice, ...]) -> list[list[PackedSlice]]:
        segments: list[list[PackedSlice]] = [[] for _ in range(self.segments)]
        block = 0  # the index of the block in the shard
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
