"""A sum of N workers' gradients about to be formed: what its kinds have in common.

    rounded.py          every partial sum in the format, in the order that was asked for
    decoded.py          decoded, added in float32 and quantized again: formats with scales
    platform.py         left to the platform

Legend: N workers, L of them on this rank, n elements of a layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from cpdrun.comm.sums.codec import accumulate, add_unrounded, quantize_scaled, scale
from cpdrun.comm.sums.magnitudes import agreement_bytes
from cpdrun.comm.sums.scaling import Shifts
from cpdrun.comm.sums.sum import RandomStream, Sum
from cpdrun.comm.wire.layout import Layout, PackedSlice, Sharding
from cpdrun.comm.workers import Workers


@dataclass(frozen=True)
class Shards:
    """A sum that stays with its owners: each worker owns a part of every layer, a rank what its workers own.

    cut: what each of the N workers owns. numels: elements of each layer. apart: stacks[p] is (L, P, w), the parts of
    the P ranks as `by_rows` cuts them, each filled up with zeros to w values.
    """

    sharding: Sharding
    numels: tuple[int, ...]
    apart: bool = False

    def select(self, chosen: Sequence[int]) -> Shards:
        """Of these layers alone."""
        if len(chosen) == len(self.numels):
            return self
        return replace(
            self, sharding=self.sharding.select(chosen), numels=tuple(self.numels[k] for k in chosen)
        )


@dataclass(frozen=True)
class Layers:
    """What is summed: names[p]; stacks[p], the (L, n_p) float32 gradients of this rank's workers, contiguous; out[p],
    (n_p,) float32, contiguous, where the sum goes: it may be stacks[p][0] itself. Not all are empty.

    key: what stochastic rounding depends on besides a layer's name, a worker and an element, such as (seed, step).
    shards: where it is given, out[p] is what this rank owns of the layer, which may be nothing.
    """

    names: Sequence[str]
    stacks: Sequence[Tensor]
    out: Sequence[Tensor]
    key: tuple = ()
    shards: Shards | None = None

    @cached_property
    def numels(self) -> tuple[int, ...]:
        if self.shards:
            return self.shards.numels
        return tuple(stack_Lxn.shape[1] for stack_Lxn in self.stacks)

    def source(self, i: int, piece: PackedSlice) -> Tensor:
        """(numel,) of a piece, of this rank's i-th worker."""
        stack = self.stacks[piece.layer]
        if self.shards and self.shards.apart:
            owner, start = divmod(piece.start, stack.shape[2])
            return stack[i, owner, start : start + piece.numel]
        return stack[i, piece.start : piece.stop]

    def parts(self, i: int, p: int) -> list[Tensor]:
        """All of a layer, of this rank's i-th worker, in contiguous tensors; zeros may follow."""
        return list(self.stacks[p][i]) if self.shards and self.shards.apart else [self.stacks[p][i]]

    def together(self) -> Layers:
        """The same with stacks (L, n_p)."""
        if not (self.shards and self.shards.apart):
            return self
        pairs = zip(self.stacks, self.numels, strict=True)
        stacks = [stack.reshape(len(stack), -1)[:, :numel].contiguous() for stack, numel in pairs]
        return replace(self, stacks=stacks, shards=replace(self.shards, apart=False))


@dataclass(frozen=True)
class SumReport:
    """What a sum took, besides its result.

    shifts[j][p]: with which the gradients of layer p were rounded by the workers of the first level's group j.
    real_worker_bytes: what each of N machines would send, on average; sent_bytes: what this rank sent to others. Both
    with the agreement on shifts.
    """

    shifts: list[list[int]]
    real_worker_bytes: int
    sent_bytes: int = 0


class Summation(ABC):
    """Raises ValueError where the parts of the sum do not fit together, or the number of workers."""

    def __init__(self, sum: Sum, workers: Workers, shifts: Shifts, agreeing: Workers | None = None) -> None:
        self.sum, self.workers, self.shifts = sum, workers, shifts
        self.agreeing = agreeing or workers  # on magnitudes
        self.n_workers = workers.world_size
        self.wire = sum  # how values travel
        self.unrounded = False  # they travel and are added as they are (`compat.py`)
        self.levels = sum.ordering.levels(self.n_workers)

    @property
    def longest_chain(self) -> int | None:
        """The most rounded additions in series that a worker's value may pass; None where nobody knows."""
        return self.sum.ordering.longest_chain(self.n_workers)

    def run(self, layers: Layers) -> SumReport:
        """Collective. The same bits on every rank, those of one process that plays all workers, but in native order.

        Raises RankLost where another rank is gone.
        """
        return self.emulate(layers) if self.workers.ranks == 1 else self.between(layers)

    @abstractmethod
    def emulate(self, layers: Layers) -> SumReport:
        """All workers are in this process."""

    @abstractmethod
    def between(self, layers: Layers) -> SumReport:
        """Ranks share the workers."""

    def report(
        self, layers: Layers, shifts: list[list[int]] | None = None, *, agreed: int = 0, sent_bytes: int = 0
    ) -> SumReport:
        """agreed: magnitudes; sent_bytes: payloads. The agreement is counted here."""
        sharding = layers.shards.sharding if layers.shards else None
        layout = Layout(layers.numels, self.wire.fmt.bits, self.n_workers, 1, sharding)
        payload = layout.scattered_bytes() if sharding else layout.sent_bytes()
        return SumReport(
            shifts or [[0] * len(layers.names)],
            payload + agreement_bytes(agreed, self.agreeing.world_size),
            sent_bytes + agreement_bytes(agreed, self.agreeing.ranks),
        )

    def total(self, values: Sequence[Tensor], how: Sum, stream: RandomStream | None) -> Tensor:
        """Values that have travelled, added in the order given, every partial sum rounded."""
        if self.unrounded:
            return add_unrounded(values, how.fmt, kahan=how.kahan)
        return accumulate(values, how, stream)

    def group_of(self, worker: int) -> int:
        """Of the first level: whose shifts the worker has."""
        return self._place(worker)[0]

    def sent_by(self, worker: int, gradient_n: Tensor, layer: str, shift: int, key: tuple) -> Tensor:
        """What the others see of a worker's gradient."""
        return scale(
            quantize_scaled(gradient_n, shift, self.sum, self.random_stream(worker, layer, key)), -shift
        )

    def random_stream(self, worker: int, layer: str, key: tuple, start: int = 0) -> RandomStream | None:
        """For the rounding of a worker's gradient, from element `start` of the layer on."""
        j, place = self._place(worker)
        return self.sum.random_stream(*key, layer + self.levels[0].marks[j], "worker", place, start=start)

    def _place(self, worker: int) -> tuple[int, int]:
        """(group, place in it) of a worker in the first level."""
        return divmod(worker, len(self.levels[0].groups[0]))
