"""Sums in formats with scales (codebooks, MX): values are decoded, added in float32 and quantized again.

Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (arXiv:1511.04561), sends gradients as codes of a
codebook with their scale. For each layer, with the gradients g_w of N workers and the format's quantization Q, which
chooses scales from the values it rounds:

    q_w = Q(g_w)                                       Each worker encodes its gradient and sends codes and scales.
    s_0 = +0 + q_0                                     The owner decodes them and adds in float32, in worker order.
    s_w = Q(s_{w-1}) + q_w     with requantise=hop     Each partial sum is quantized, as in a ring.
    s_w = s_{w-1} + q_w        with requantise=once    Partial sums stay in float32.
    result = Q(s_{N-1})                                The owner encodes the result, and all ranks decode these bytes.

So all ranks get the same bits, which equal those of one process that emulates all workers. In Dettmers' version, every
rank adds the gradients of the others to its own exact gradient, so each rank ends with different weights.

The same formulas apply to formats without scales (any `Format`). With up to 10 mantissa bits, requantise=hop then
equals order=rank of `rounded_sum.py`, bit for bit. In formats with scales, a block or tensor that contains inf or NaN
becomes NaN in the result (see custom_fp.formats.scaled_format).

Between ranks, a layer whose format has one scale for the whole layer is sent to one owner. Other layers are divided
into slices of whole blocks, which are distributed over the owners by size. On average over N machines, each machine
sends 2 (N-1)/N times the bytes of the packed gradient, including scales.

If the sum stays in shards, the boundary of a shard may cut a block. Both owners then receive the whole block, and each
discards the sums of the elements that it does not own. A layer with one scale is sent to all owners of a part of the
layer.

Shapes: N workers, P ranks, L = N/P workers of this rank, n elements of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import custom_fp
import torch
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.sums.summation import Layers, Shards, Summation, SumReport
from cpdrun.comm.wire import Tag
from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.wire.message_layout import PackedSlice, Slice, assign_to_owners, ceil_div

PIECE_VALUES = 1 << 16  # the values per slice of a divided layer. Smaller slices are distributed more evenly.


class RequantizedSum(Summation):
    """Computes a sum by decoding the values, adding them in float32, and quantizing the result again.

    Raises:
        ValueError: The sum has a setting that such sums do not support.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        sum, why = self.sum, f"requantise={self.sum.requantization} adds in float32"
        if sum.fmt.has_scales:
            why = f"format {sum.fmt} has its own scales"
        if self.shifts.scale:
            raise ValueError(f"{why}. Set aps=false")
        for key, allowed in (("kahan", False), ("rounding", "nearest_even")):
            if (value := getattr(sum, key)) != allowed:
                raise ValueError(f"{key}={value}: {why}, so the value must be {allowed}")
        if not sum.ordering.is_one_chain(self.n_workers):
            raise ValueError(
                f"order={sum.order}: {why}, so the order must be rank. Set order=rank, or sync=requantised"
            )

    @property
    def longest_chain(self) -> int:
        """The largest number of additions whose result is rounded to the format, one after the other.

        requantise=hop rounds after each addition, and requantise=once only after the last.
        """
        return self.n_workers - 1 if self.sum.requantization == "hop" else min(1, self.n_workers - 1)

    def emulate(self, layers: Layers) -> SumReport:
        fmt = self.sum.fmt
        for stack_Nxn, target in zip(layers.stacks, layers.out, strict=True):
            decoded_Nxn = custom_fp.quantize_rows(stack_Nxn, fmt)  # Each worker has its own scales.
            target.copy_(custom_fp.quantize(self._add(decoded_Nxn.unbind()), fmt))
        return self._report(layers)

    def between(self, layers: Layers) -> SumReport:
        if layers.shards:
            return self._report(layers, self._scatter(layers.together()))
        assigned = _assign(layers.numels, self.sum.fmt, self.workers.ranks)
        return self._report(layers, self._exchange(layers, assigned))

    def _add(self, rows: Sequence[Tensor]) -> Tensor:
        """Return s_{N-1} of the definition from the decoded q_w in worker order, as a new float32 tensor."""
        total = rows[0] + 0.0
        for row in rows[1:]:
            if self.sum.requantization == "hop":
                total = custom_fp.quantize(total, self.sum.fmt)
            total = total + row
        return total

    def _report(self, layers: Layers, sent_bytes: int = 0) -> SumReport:
        if layers.shards:
            owned = _in_whole_blocks(layers.shards, self.sum.fmt, self.n_workers)
            packed, times = sum(piece.size for pieces in owned for piece in pieces), 1
        else:
            packed, times = sum(piece.size for piece in _cut(layers.numels, self.sum.fmt)), 2
        real_worker = ceil_div(times * (self.n_workers - 1) * packed, self.n_workers)
        return SumReport([[0] * len(layers.names)], real_worker, sent_bytes)

    def _exchange(self, layers: Layers, assigned: Sequence[Sequence[PackedSlice]]) -> int:
        """Compute the sums of all slices and return the number of bytes sent to other ranks."""
        workers, communicator = self.workers, Communicator(self.workers.group)
        sums, sent_bytes = self._sums(layers, assigned, communicator)
        own = torch.cat([_no_bytes(layers), *(custom_fp.pack(total, self.sum.fmt) for total in sums)])
        sizes = [sum(piece.size for piece in pieces) for pieces in assigned]
        results = communicator.swap([own] * workers.ranks, sizes, Tag.PIECES_TO_ALL)
        for pieces, data in zip(assigned, results, strict=True):
            for piece in pieces:
                layers.out[piece.layer][piece.start : piece.stop] = self._decoded(data, piece)
        return sent_bytes + (workers.ranks - 1) * own.numel()

    def _scatter(self, layers: Layers) -> int:
        """Compute the sums that this rank owns and return the number of bytes sent to other ranks."""
        assert layers.shards is not None
        ranks, rank = self.workers.ranks, self.workers.rank
        assigned = _in_whole_blocks(layers.shards, self.sum.fmt, ranks)
        sums, sent_bytes = self._sums(layers, assigned, Communicator(self.workers.group))
        owned = layers.shards.sharding.by_rank(ranks).owned_by(rank, len(layers.names))
        for piece, total in zip(assigned[rank], sums, strict=True):
            mine = owned[piece.layer]
            whole = custom_fp.quantize(total, self.sum.fmt)
            layers.out[piece.layer].copy_(whole[mine.start - piece.start : mine.stop - piece.start])
        return sent_bytes

    def _sums(
        self, layers: Layers, assigned: Sequence[Sequence[PackedSlice]], communicator: Communicator
    ) -> tuple[list[Tensor], int]:
        """Return s_{N-1} for each of this rank's slices, and the number of bytes sent to other ranks."""
        fmt, workers, stacks = self.sum.fmt, self.workers, layers.stacks
        mine = assigned[workers.rank]

        def encoded(worker: int, pieces: Sequence[PackedSlice]) -> list[Tensor]:
            return [custom_fp.pack(stacks[p.layer][worker, p.start : p.stop], fmt) for p in pieces]

        payloads = [
            torch.cat(
                [_no_bytes(layers), *(data for w in range(workers.share) for data in encoded(w, pieces))]
            )
            for pieces in assigned
        ]
        expected = [workers.share * sum(piece.size for piece in mine)] * workers.ranks
        received = communicator.swap(payloads, expected, Tag.PIECES_TO_OWNER)
        worker_payloads = [part for data in received for part in data.view(workers.share, -1)]
        sums = [self._add([self._decoded(data, piece) for data in worker_payloads]) for piece in mine]
        others = sum(data.numel() for rank, data in enumerate(payloads) if rank != workers.rank)
        return sums, others

    def _decoded(self, message: Tensor, piece: PackedSlice) -> Tensor:
        return custom_fp.unpack(piece.of(message), self.sum.fmt, (piece.numel,))


def _no_bytes(layers: Layers) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=layers.stacks[0].device)


@lru_cache(maxsize=512)
def _in_whole_blocks(shards: Shards, fmt: NumberFormat, ranks: int) -> tuple[tuple[PackedSlice, ...], ...]:
    """Return, for each rank, slices of whole blocks that cover the parts it owns, in the order of its message."""

    def pieces(owned: Sequence[Slice]) -> Iterator[PackedSlice]:
        byte = 0
        for layer, start, stop in owned:
            numel = shards.numels[layer]
            block = fmt.together or numel
            start, stop = start // block * block, min(numel, ceil_div(stop, block) * block)
            piece = PackedSlice(layer, start, stop, custom_fp.packed_size(stop - start, fmt), byte)
            byte += piece.size
            yield piece

    return tuple(tuple(pieces(owned)) for owned in shards.sharding.by_rank(ranks).slices)


@lru_cache(maxsize=512)
def _cut(numels: tuple[int, ...], fmt: NumberFormat) -> tuple[PackedSlice, ...]:
    """Divide all layers into slices. An empty layer has no slices."""

    def piece(layer: int, start: int, stop: int) -> PackedSlice:
        return PackedSlice(layer, start, stop, custom_fp.packed_size(stop - start, fmt))

    if fmt.together is None:
        return tuple(piece(layer, 0, numel) for layer, numel in enumerate(numels) if numel)
    most = fmt.together * ceil_div(PIECE_VALUES, fmt.together)
    return tuple(
        piece(layer, start, min(start + most, numel))
        for layer, numel in enumerate(numels)
        for start in range(0, numel, most)
    )


@lru_cache(maxsize=512)
def _assign(numels: tuple[int, ...], fmt: NumberFormat, ranks: int) -> tuple[tuple[PackedSlice, ...], ...]:
    return assign_to_owners(_cut(numels, fmt), ranks)
