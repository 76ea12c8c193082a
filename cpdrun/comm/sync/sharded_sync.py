"""Sharded data parallelism: gradients are reduced to their owners, and weights are gathered from their owners.

This is ZeRO, stages 1 and 2. Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models" (SC 2020, arXiv:1910.02054). Each of N workers owns 1/N of all elements, in shards of whole granules
(`wire/message_layout.py`). The shards of a rank's workers are adjacent. A step consists of three parts:

    scatter     Each owner receives the sum of the workers' gradients in the run's format and order, with the same bits
                as with `AllReduceSync`.
    optimizer   The owner's optimizer computes new float32 weights m (`cpdrun.train.learners.shared_weights`).
    gather      All workers receive these weights, in a format that is chosen separately.

The gather rounds, packs and sends each layer (one parameter tensor) of the owners' weights m. All workers decode it to
weights w:

    w = Q(m)                    If the format has 8 exponent bits, or without a scaling rule.
    w = Q(m 2^s) 2^-s           With a scaling rule. s = emax - ceil(log2(max|m|)) of the whole layer, as in APS.
    w += Q((m - w) 2^s) 2^-s    With differences=true. s is computed from max|m - w|, and w are the latest decoded
                                weights.

All workers, including the owner, decode the same bytes. With differences, rounding errors are part of the next
difference, as in error feedback. The owner's copy of w equals that of all other workers, like the copies x^ of
CHOCO-SGD (Koloskova et al., arXiv 1902.00340).

Weights are rounded to nearest even. NaN and inf are kept if the format has them. -0 and subnormals are those of the
format. A weight beyond the largest value overflows as in `custom_fp.quantize`, to infinity if the format has infinity.

A worker sends (N-1)/N n k/8 bytes of gradients and (N-1)/N n k'/8 bytes of weights, plus 4 bytes per layer for the
agreement on s. A difference from ZeRO: sums have a defined order and format, and are equal for any number of processes.

Shapes: N workers, L of them on this rank, P ranks, n elements of a layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import custom_fp
import torch
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.sums import codec
from cpdrun.comm.sums.exchange import SEGMENT_VALUES, layout_of, pipeline, transport_of
from cpdrun.comm.sums.magnitudes import agreement_bytes, largest_magnitude
from cpdrun.comm.sums.scaling import APS, PrefetchedShifts, Shifts
from cpdrun.comm.sums.sum import Sum, accepts_sum_options
from cpdrun.comm.sums.summation import Shards
from cpdrun.comm.sync.all_reduce import AllReduceSync
from cpdrun.comm.sync.base import GradientSync
from cpdrun.comm.sync.statistics import count_hidden, count_nonfinite
from cpdrun.comm.wire.lost_ranks import naming_lost_ranks
from cpdrun.comm.wire.message_layout import GRANULE, Layout, PackedSlice, Sharding, shard_evenly
from cpdrun.comm.workers import Workers

KEEPS_RANGE = 8  # the exponent bits of float32. A format with the same range needs no scale.


@dataclass(frozen=True)
class Weights:
    """The weights of a gather.

    Attributes:
        names: The name of each layer.
        mine: For each layer, the part that this rank owns, (n_own,) float32, contiguous.
        numels: The number of elements of each whole layer.
        sharding: The parts that each worker owns.
        place: A function. place(owner, piece) returns the memory (numel,), float32 and contiguous, for the decoded
            elements of a slice that rank `owner` owns. With differences, the elements are added to the values in this
            memory.
    """

    names: Sequence[str]
    mine: Sequence[Tensor]
    numels: tuple[int, ...]
    sharding: Sharding
    place: Callable[[int, PackedSlice], Tensor]


@dataclass(frozen=True)
class Traffic:
    """The payload bytes of an exchange, counted as in `SumReport`. They include the agreement on scales."""

    real_worker_bytes: int = 0
    sent_bytes: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.real_worker_bytes + other.real_worker_bytes, self.sent_bytes + other.sent_bytes)


class WeightGather:
    """A gather of weights, or of their differences.

    Raises:
        ValueError: The format has its own scales.
    """

    def __init__(self, fmt: NumberFormat | str, workers: Workers, *, scaled: bool, differences: bool = False):
        self.fmt, self.workers, self.differences = gather_format(fmt), workers, differences
        self.how = Sum(self.fmt)
        self.shifts = Shifts(APS() if scaled and not _keeps_range(self.fmt) else None)

    def run(self, weights: Weights) -> Traffic:
        """Gather the weights. Collective.

        Raises:
            RankLost: Another rank is lost.
        """
        if not any(weights.numels):
            return Traffic()
        with naming_lost_ranks(self.workers.group):
            N, ranks = self.workers.world_size, self.workers.ranks
            sharding = weights.sharding.by_rank(ranks)
            layout = layout_of(weights.numels, self.fmt.bits, ranks, SEGMENT_VALUES, sharding)
            (level,) = self.how.ordering.levels(
                1
            )  # A gather adds nothing, so the level has a single summand.
            prefetched = PrefetchedShifts(
                self.shifts,
                level,
                weights.names,
                lambda p: largest_magnitude(weights.mine[p]),
                self.fmt,
                self.workers,
                layout,
            )
            sent = (
                self._emulate(weights, prefetched)
                if ranks == 1
                else self._exchange(weights, prefetched, layout)
            )
            agreed = prefetched.agreed
        of_worker = Layout(weights.numels, self.fmt.code_bits, N, 1, weights.sharding).gathered_bytes
        return Traffic(of_worker + agreement_bytes(agreed, N), sent + agreement_bytes(agreed, ranks))

    def _emulate(self, weights: Weights, prefetched: PrefetchedShifts) -> int:
        """Round the weights. This rank owns all of them and sends nothing."""
        for t in range(len(prefetched.last)):
            prefetched.settle(t)
        for p, (m, shift) in enumerate(zip(weights.mine, prefetched.shifts, strict=True)):
            if m.numel():
                place = weights.place(0, PackedSlice(p, 0, m.numel(), 0))
                decoded = codec.scale(codec.quantize_scaled(m, shift, self.how), -shift)
                place.add_(decoded) if self.differences else place.copy_(decoded)
        return 0

    def _exchange(self, weights: Weights, prefetched: PrefetchedShifts, layout: Layout) -> int:
        """Exchange the weights and return the number of bytes sent to other ranks."""
        rank, shifts = self.workers.rank, prefetched.shifts
        assert layout.sharding is not None
        begins = [part.start for part in layout.sharding.owned_by(rank, len(weights.names))]
        device = weights.mine[0].device
        transport = transport_of(self.workers.group, device)
        change = torch.empty(8 * layout.segment_blocks if self.differences else 0, device=device)

        def send(t: int) -> None:
            prefetched.settle(t)
            message = transport.own_sum(t)
            for piece in layout.pieces[rank][t]:
                begin = begins[piece.layer]
                source = weights.mine[piece.layer][piece.start - begin : piece.stop - begin]
                codec.round_and_pack(source, shifts[piece.layer], self.how, None, out=piece.of(message))
            transport.send_to_all(t)
            prefetched.begin()

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
    """Return the format with this name.

    Raises:
        ValueError: The name is unknown, or the format has its own scales.
    """
    found = parse(fmt)
    if found.has_scales:
        raise ValueError(
            f"gather={found}: the format of gathered weights must not have its own scales. Set, for example, "
            "gather=bf16, or gather=e4m3 with aps=true, which scales each layer"
        )
    return found


class ShardedSync(GradientSync):
    """Sharded data parallelism in a run. Layers in full precision are gathered in fp32.

    conf/sync/sharded.yaml describes the settings. The other arguments are those of `AllReduceSync`.

    Args:
        gather: The format of the gathered weights.
        differences: Whether to gather the differences from the latest decoded weights instead of the weights.
        run_settings: The arguments of `AllReduceSync`.

    Raises:
        ValueError: The settings do not fit together.
    """

    learner = "cpdrun.train.learners.shared_weights.ShardedWeights"

    @accepts_sum_options
    def __init__(self, *, gather: str = "fp32", differences: bool = False, **run_settings: Any) -> None:
        self.gradients = AllReduceSync(**run_settings)
        self.workers, self.hybrid = self.gradients.workers, self.gradients.hybrid
        self.names, self.longest_chain = self.gradients.names, self.gradients.longest_chain
        scaled = self.gradients.shifts.scale
        self.in_format = WeightGather(
            gather, self.workers, scaled=scaled or differences, differences=differences
        )
        self.in_full = WeightGather("fp32", self.workers, scaled=False)
        self._gathered = Traffic()

    def begin(self, weights: Sequence[Tensor]) -> list[slice]:
        """Divide the weights before the first step, and return the slice of each layer that this rank owns."""
        numels = tuple(w.numel() for w in weights)
        self.shards = Shards(shard_evenly(numels, self.workers.world_size, GRANULE), numels)
        self.owned = self.shards.sharding.by_rank(self.workers.ranks).owned_by(self.workers.rank, len(numels))
        return self.owned

    @property
    def shards_of_mine(self) -> list[list[slice]]:
        """The slice of each layer that a worker owns, for each worker of this rank."""
        return [self.shards.sharding.owned_by(worker, len(self.names)) for worker in self.workers.local]

    def scatter(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        """Reduce gradients to their owners. Collective.

        The arguments are those of `reduce_stacked`. The attribute `nonfinite` is updated in the same way.

        Returns:
            This rank's part (n_own,) of each layer of the result.
        """
        flat = self.workers.rows(stacks, len(self.names))
        sums = [g_Lxn.new_empty(own.stop - own.start) for g_Lxn, own in zip(flat, self.owned, strict=True)]
        layers = range(len(self.names))
        self.gradients.reduce_layers(layers, flat, step=step, epoch=epoch, out=sums, shards=self.shards)
        hidden = sum(count_hidden([g_Lxn], self._sum_of(p, epoch)) for p, g_Lxn in enumerate(flat))
        self.nonfinite = self.workers.total(count_nonfinite(sums) + hidden, flat[0].device)
        return sums

    def gather_(self, mine: Sequence[Tensor], weights: Sequence[Tensor], *, epoch: int) -> None:
        """Gather the weights from their owners, and replace this rank's weights by the decoded weights. Collective.

        Args:
            mine: For each layer, this rank's part (n_own,).
            weights: For each layer, the weights, float32 and contiguous, which are replaced. With differences, they
                must contain the latest decoded weights.
            epoch: The epoch.
        """
        self._gathered = Traffic()
        flat = [w.detach().view(-1) for w in weights]
        with torch.no_grad():
            for full, kind in ((False, self.in_format), (True, self.in_full)):
                chosen = [p for p in range(len(self.names)) if self.hybrid.covers(p, epoch) == full]
                if chosen:
                    self._gathered += kind.run(self._weights(chosen, mine, flat, kind.differences))

    def whole(self, mine: Sequence[Tensor]) -> list[Tensor]:
        """Return each whole layer (n,) from the parts of all ranks, for inspection. Collective.

        The bytes of this exchange are not counted.
        """
        flat = [part.new_zeros(numel) for part, numel in zip(mine, self.shards.numels, strict=True)]
        self.in_full.run(self._weights(range(len(flat)), mine, flat, False))
        return flat

    def _weights(
        self, chosen: Sequence[int], mine: Sequence[Tensor], flat: Sequence[Tensor], differences: bool
    ) -> Weights:
        shards = self.shards.select(chosen)
        parts = [mine[p] for p in chosen]
        if differences:
            parts = [m - flat[p][self.owned[p]] for m, p in zip(parts, chosen, strict=True)]

        def place(_owner: int, piece: PackedSlice) -> Tensor:
            return flat[chosen[piece.layer]][piece.start : piece.stop]

        return Weights([self.names[p] for p in chosen], parts, shards.numels, shards.sharding, place)

    def _sum_of(self, p: int, epoch: int) -> Any:
        """Return the sum that is used for layer p."""
        full = self.hybrid.covers(p, epoch)
        return (self.gradients.in_full_precision if full else self.gradients.summation).sum

    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        return self.gradients.reduce_stacked(stacks, step=step, epoch=epoch)

    def statistics(
        self, stacks: Sequence[Tensor], mean_gradient: Sequence[Tensor]
    ) -> list[dict[str, str | int | float | None]]:
        return self.gradients.statistics(stacks, mean_gradient)

    def wire_bytes(self) -> dict[str, int]:
        """Return the payload bytes of the latest calls of `scatter` and `gather_`."""
        of_gradients = self.gradients.wire_bytes()
        return {
            "bytes_per_step_sent": of_gradients["bytes_per_step_sent"] + self._gathered.sent_bytes,
            "bytes_per_step_real_worker": of_gradients["bytes_per_step_real_worker"]
            + self._gathered.real_worker_bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        return self.gradients.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gradients.load_state_dict(state)
