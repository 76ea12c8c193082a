"""Weights on their way from their owners to all: rounded to a format of their own, packed, sent, decoded by everyone.

Per layer (one parameter tensor) with the float32 weights m that its owners keep:

    w = Q(m)                                     a format of 8 exponent bits, or no scaling rule
    w = Q(m 2^s) 2^-s                            with a rule: s = emax - ceil(log2(max|m|)) of the whole layer (APS's)
    w += Q((m - w) 2^s) 2^-s                     differences=true: s of max|m - w|, w what everyone decoded last

All decode the same bytes, the owner too. With differences what rounding takes is in the next difference again, as error
feedback has it: the owner's copy of w is everyone's (CHOCO-SGD, Koloskova et al., arXiv 1902.00340, and its hat x).

Rounding is to nearest even; NaN and inf stay where the format has them, -0 and subnormals are the format's, a weight
beyond the format's largest overflows as `custom_fp.quantize` has it, to infinity where the format has one.

An owner sends its shard to N-1 others: (N-1)/N n k/8 bytes a worker, and 4 a layer for the agreement on s.

Legend: P ranks, n elements of a layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import custom_fp
import torch
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.sums import codec
from cpdrun.comm.sums.magnitudes import agreement_bytes, largest_magnitude
from cpdrun.comm.sums.scaling import APS, Shifts
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summations.ahead import Ahead
from cpdrun.comm.sums.summations.exchange import SEGMENT_VALUES, layout_of, pipeline, transport_of
from cpdrun.comm.wire.cut import Cut
from cpdrun.comm.wire.failure import naming_lost_ranks
from cpdrun.comm.wire.layout import Layout
from cpdrun.comm.wire.piece import Piece
from cpdrun.comm.workers import Workers

KEEPS_RANGE = 8  # exponent bits of float32: nothing that a format of as many could gain by a scale


@dataclass(frozen=True)
class Weights:
    """What is gathered: names[p]; mine[p], the part of layer p that this rank owns, (n_own,) float32, contiguous; the
    whole layers' numels; cut, what each worker owns.

    place(owner, piece): where the elements of a piece go, that rank `owner` owns; (numel,) float32, contiguous. With
    differences they are added to what is there.
    """

    names: Sequence[str]
    mine: Sequence[Tensor]
    numels: tuple[int, ...]
    cut: Cut
    place: Callable[[int, Piece], Tensor]


@dataclass(frozen=True)
class Gathered:
    """What it took: payload bytes with the agreement on scales, as `Summed` counts them."""

    real_worker_bytes: int = 0
    sent_bytes: int = 0

    def __add__(self, other: "Gathered") -> "Gathered":
        return Gathered(self.real_worker_bytes + other.real_worker_bytes, self.sent_bytes + other.sent_bytes)


class Gather:
    """Of weights of these workers, or of their differences. Raises ValueError for a format with scales of its own."""

    def __init__(self, fmt: NumberFormat | str, workers: Workers, *, scaled: bool, differences: bool = False):
        self.fmt, self.workers, self.differences = gather_format(fmt), workers, differences
        self.how = Sum(self.fmt)
        self.shifts = Shifts(APS() if scaled and not _keeps_range(self.fmt) else None)

    def run(self, weights: Weights) -> Gathered:
        """Collective. Raises RankLost where another rank is gone."""
        if not any(weights.numels):
            return Gathered()
        with naming_lost_ranks(self.workers.group):
            N, ranks = self.workers.world_size, self.workers.ranks
            cut = weights.cut.of_ranks(ranks)
            layout = layout_of(weights.numels, self.fmt.bits, ranks, SEGMENT_VALUES, cut)
            (level,) = self.how.ordering.levels(1)  # nothing is added: a layer is its own largest summand
            ahead = Ahead(
                self.shifts,
                level,
                weights.names,
                lambda p: largest_magnitude(weights.mine[p]),
                self.fmt,
                self.workers,
                layout,
            )
            sent = self._emulate(weights, ahead) if ranks == 1 else self._exchange(weights, ahead, layout)
            agreed = ahead.agreed
        of_worker = Layout(weights.numels, self.fmt.bits, N, 1, weights.cut).gathered_bytes
        return Gathered(of_worker + agreement_bytes(agreed, N), sent + agreement_bytes(agreed, ranks))

    def _emulate(self, weights: Weights, ahead: Ahead) -> int:
        """This rank owns all there is, and sends nothing."""
        for t in range(len(ahead.last)):
            ahead.settle(t)
        for p, (m, shift) in enumerate(zip(weights.mine, ahead.shifts, strict=True)):
            if m.numel():
                place = weights.place(0, Piece(p, 0, m.numel(), 0))
                decoded = codec.scale(codec.quantize_scaled(m, shift, self.how), -shift)
                place.add_(decoded) if self.differences else place.copy_(decoded)
        return 0

    def _exchange(self, weights: Weights, ahead: Ahead, layout: Layout) -> int:
        """Returns the bytes sent to other ranks."""
        rank, shifts = self.workers.rank, ahead.shifts
        begins = [part.start for part in layout.cut.of_owner(rank, len(weights.names))]
        device = weights.mine[0].device
        transport = transport_of(self.workers.group, device)
        change = torch.empty(8 * layout.segment_blocks if self.differences else 0, device=device)

        def send(t: int) -> None:
            ahead.settle(t)
            message = transport.own_sum(t)
            for piece in layout.pieces[rank][t]:
                begin = begins[piece.layer]
                source = weights.mine[piece.layer][piece.start - begin : piece.stop - begin]
                codec.round_and_pack(source, shifts[piece.layer], self.how, None, out=piece.of(message))
            transport.send_to_all(t)
            ahead.begin()

        def decode(t: int) -> None:
            for owner, message in enumerate(transport.wait_for_sums(t)):
                for piece in layout.pieces[owner][t]:
                    place = weights.place(owner, piece)
                    unpack = partial(custom_fp.unpack, piece.of(message), self.fmt, piece.numel)
                    shift = -shifts[piece.layer]
                    if self.differences:
                        place.add_(unpack(shift=shift, out=change[: piece.numel]))
                    else:
                        unpack(shift=shift, out=place)

        transport.begin(layout, 1, scatter=False)
        pipeline(layout.segments, send, decode)
        transport.finish()
        return layout.gathered_bytes


def _keeps_range(fmt: NumberFormat) -> bool:
    return fmt.exponent_bits is not None and fmt.exponent_bits >= KEEPS_RANGE


def gather_format(fmt: NumberFormat | str) -> NumberFormat:
    """Raises ValueError for a name that is none, and for formats with scales of their own."""
    found = parse(fmt)
    if found.has_scales:
        raise ValueError(
            f"gather={found}: weights are gathered in a format without scales of its own, such as bf16 or e4m3, which "
            "aps=true gives one scale a layer"
        )
    return found
