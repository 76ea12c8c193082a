"""Sums in formats with scales (codebooks, MX): values are decoded, added in float32 and quantized again.

Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (arXiv:1511.04561), sends gradients as codes of a
codebook with their scale. For each layer, with the gradients g_w of N workers and the format's quantization Q, which
chooses scales from the values it rounds:

    q_w = Q(g_w)                                       every worker encodes its gradient; codes and scales are sent
    s_0 = +0 + q_0                                     decoded, and added in float32, in worker order:
    s_w = Q(s_{w-1}) + q_w     requantise=hop          each partial sum is sent in the format, as in a ring
    s_w = s_{w-1} + q_w        requantise=once         one owner adds them all
    result = Q(s_{N-1})                                encoded once by its owner; everyone decodes these bytes

So all ranks get the same bits, which equal those of one process that emulates all workers. In the original, every rank
adds the gradients of the others to its own exact gradient, so each rank ends with different weights.

The same formulas hold without scales (any `Format`). requantise=hop then equals order=rank of `rounded_sum.py`, bit for
bit, for up to 10 mantissa bits. A block or tensor that contains inf or NaN is NaN in the result (see custom_fp.scaled).

Between ranks, a layer whose format has one scale for the whole layer goes to one owner. Other layers are divided into
slices of whole blocks, which are distributed over the owners by size. On average over N machines, each machine sends
2 (N-1)/N of the packed gradient, including scales.

If the sum stays in shards, an owner receives its part and the rest of the blocks that the part cuts. It discards the
sums of that rest. So a block that two owners share is sent to both, and a layer with one scale to all owners of a part
of it.

Legend: N workers, P ranks, L = N/P workers of this rank, n elements of a layer.
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

PIECE_VALUES = 1 << 16  # per slice of a layer that may be divided; smaller slices are distributed more evenly


class RequantizedSum(Summation):
    """A sum that is decoded, added in float32 and quantized again.

    Raises:
        ValueError: A setting has no meaning for such sums.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        sum, why = self.sum, f"requantise={self.sum.again} adds in float32"
        if sum.fmt.has_scales:
            why = f"format {sum.fmt} has scales of its own"
        if self.shifts.scale:
            raise ValueError(f"{why}: it takes aps=false")
        for key, allowed in (("kahan", False), ("rounding", "nearest_even")):
            if (value := getattr(sum, key)) != allowed:
                raise ValueError(f"{key}={value}: {why}, which leaves only {allowed}")
        if not sum.ordering.is_one_chain(self.n_workers):
            raise ValueError(
                f"order={sum.order}: {why}, which leaves only rank: take order=rank, or sync=requantised"
            )

    @property
    def longest_chain(self) -> int:
        """The largest number of rounded additions. requantise=once rounds to the format once, after all additions."""
        return self.n_workers - 1 if self.sum.again == "hop" else min(1, self.n_workers - 1)

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
            if self.sum.again == "hop":
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
        """Return s_{N-1} of each of this rank's slices, and the number of bytes sent to other ranks."""
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
    """Return, for each rank, the blocks of which it owns a part, one after the other in a message."""

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
    """Divide all layers into slices. Empty layers have none."""

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
