"""Who owns which elements: layers cut in shards, for sums that stay with their owners and for the messages of others.

    even      all layers in one row, cut in shards of equal size, each layer between granules of so many values
    by_rows   each layer along its first dimension, as FSDP2 cuts parameters (torch.chunk): the last shards of one may
              be smaller or empty

An owner's slices are in the order of layers, and of each layer it has at most one.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from cpdrun.comm.wire.piece import ceil_div

BYTE = 8
"""Values that begin and end on a byte in any format."""

ALIKE = 64
"""Values of a granule that a processor's elementwise loops treat alike, wherever in its layer it begins: whole vectors.
So what an optimizer makes of an element does not depend on the shard that it lies in."""


class Slice(NamedTuple):
    """Elements [start, stop) of a layer in a row; not empty."""

    layer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Cut:
    """The slices of each owner."""

    slices: tuple[tuple[Slice, ...], ...]

    @property
    def owners(self) -> int:
        return len(self.slices)

    def of_ranks(self, ranks: int) -> "Cut":
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
        return Cut(tuple(merged))

    def of_owner(self, owner: int, layers: int) -> list[slice]:
        """Of each of so many layers what the owner has, an empty slice where it has nothing."""
        owned = {part.layer: slice(part.start, part.stop) for part in self.slices[owner]}
        return [owned.get(layer, slice(0, 0)) for layer in range(layers)]

    def only(self, chosen: Collection[int]) -> "Cut":
        """Of these layers alone, which are numbered anew from 0."""
        number = {layer: k for k, layer in enumerate(chosen)}
        return Cut(
            tuple(
                tuple(part._replace(layer=number[part.layer]) for part in owned if part.layer in number)
                for owned in self.slices
            )
        )


def even(numels: Sequence[int], owners: int, granule: int) -> Cut:
    """Shards of as many bytes as whole granules allow; the last may be smaller or empty. granule: a multiple of 8."""
    firsts = [0, *accumulate(ceil_div(numel, BYTE) for numel in numels)]
    shard = ceil_div(firsts[-1], owners)
    ends = [_nearest(firsts, min(owner * shard, firsts[-1]), granule // BYTE) for owner in range(owners + 1)]

    def owned(first: int, end: int) -> Iterator[Slice]:
        for layer, ((begin, stop), numel) in enumerate(zip(pairwise(firsts), numels, strict=True)):
            start, past = max(first, begin) - begin, min(end, stop) - begin
            if start < past:
                yield Slice(layer, start * BYTE, min(past * BYTE, numel))

    return Cut(tuple(tuple(owned(*span)) for span in pairwise(ends)))


def _nearest(firsts: Sequence[int], block: int, granule: int) -> int:
    """To a block of all layers in a row, where a layer may be cut: at its ends and between granules of so many blocks.
    firsts: where layers begin, and the last one ends."""
    layer = min(bisect_right(firsts, block), len(firsts) - 1) - 1
    before = (block - firsts[layer]) // granule * granule + firsts[layer]
    after = min(before + granule, firsts[layer + 1])
    return before if block - before <= after - block else after


def width(shape: Sequence[int], owners: int) -> int:
    """Elements of one owner's rows, the last rows filled up; a scalar is a row."""
    rows, rest = (shape[0], prod(shape[1:])) if len(shape) else (1, 1)
    return ceil_div(rows, owners) * rest


def by_rows(shapes: Sequence[Sequence[int]], owners: int) -> Cut:
    """As FSDP2 cuts: ceil(rows / owners) rows each, until there are no more."""

    def owned(owner: int) -> tuple[Slice, ...]:
        spans = ((layer, width(shape, owners), prod(shape)) for layer, shape in enumerate(shapes))
        return tuple(
            Slice(layer, owner * of_one, min((owner + 1) * of_one, numel))
            for layer, of_one, numel in spans
            if owner * of_one < numel
        )

    return Cut(tuple(owned(owner) for owner in range(owners)))
