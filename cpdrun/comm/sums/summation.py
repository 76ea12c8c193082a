"""The common interface of sums of N workers' gradients.

    rounded_sum.py       Sums that round every partial sum to the format, and sums that the platform computes.
    requantized_sum.py   Sums that decode values, add them in float32, and quantize the result again, for formats with
                         scales.

Shapes: N workers, L of them on this rank, n elements of a layer, P ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from torch import Tensor

from cpdrun.comm.sums.codec import accumulate, add_unrounded, quantize_scaled, scale
from cpdrun.comm.sums.magnitudes import agreement_bytes
from cpdrun.comm.sums.scaling import Shifts
from cpdrun.comm.sums.sum import RandomStream, Sum
from cpdrun.comm.wire.message_layout import Layout, PackedSlice, Sharding
from cpdrun.comm.workers import Workers


@dataclass(frozen=True)
class Shards:
    """The division of a sum into parts, if each rank needs only the part that it owns.

    Each worker owns a part of every layer. A rank owns the parts of its workers.

    Attributes:
        sharding: The parts that each of the N workers owns.
        numels: The number of elements of each layer.
        apart: Whether gradients are stored in the shape (L, P, w), with one row per rank. The rows are the parts that
            `shard_by_rows` creates, each padded with zeros to w values.
    """

    sharding: Sharding
    numels: tuple[int, ...]
    apart: bool = False

    def select(self, chosen: Sequence[int]) -> Shards:
        """Return the shards of the chosen layers."""
        if len(chosen) == len(self.numels):
            return self
        return replace(
            self, sharding=self.sharding.select(chosen), numels=tuple(self.numels[k] for k in chosen)
        )


@dataclass(frozen=True)
class Layers:
    """The gradients of an exchange. At least one of them is not empty.

    Attributes:
        names: The name of each layer.
        stacks: For each layer, the float32 gradients (L, n) of this rank's workers, contiguous.
        out: For each layer, the memory (n,) for the sum, float32 and contiguous. It may be the first row of the stack.
        key: The key of stochastic rounding, such as (seed, step). Random numbers also depend on the layer's name, the
            worker, and the element.
        shards: The division of the sum into parts. If it is given, `out` contains only the part of each layer that this
            rank owns, which may be empty.
    """

    names: Sequence[str]
    stacks: Sequence[Tensor]
    out: Sequence[Tensor]
    key: tuple = ()
    shards: Shards | None = None

    @cached_property
    def numels(self) -> tuple[int, ...]:
        """The number of elements of each layer."""
        if self.shards:
            return self.shards.numels
        return tuple(stack_Lxn.shape[1] for stack_Lxn in self.stacks)

    def source(self, i: int, piece: PackedSlice) -> Tensor:
        """Return the elements of a slice of a gradient. The gradient belongs to this rank's i-th worker."""
        stack = self.stacks[piece.layer]
        if self.shards and self.shards.apart:
            owner, start = divmod(piece.start, stack.shape[2])
            return stack[i, owner, start : start + piece.numel]
        return stack[i, piece.start : piece.stop]

    def parts(self, i: int, p: int) -> list[Tensor]:
        """Return the gradient of layer p of this rank's i-th worker as contiguous tensors, possibly with padding."""
        return list(self.stacks[p][i]) if self.shards and self.shards.apart else [self.stacks[p][i]]

    def together(self) -> Layers:
        """Return these layers with each gradient as one tensor of shape (L, n), without padding."""
        if not (self.shards and self.shards.apart):
            return self
        pairs = zip(self.stacks, self.numels, strict=True)
        stacks = [stack.reshape(len(stack), -1)[:, :numel].contiguous() for stack, numel in pairs]
        return replace(self, stacks=stacks, shards=replace(self.shards, apart=False))


@dataclass(frozen=True)
class SumReport:
    """The shifts and the traffic of a sum.

    Attributes:
        shifts: shifts[j][p] is the shift of layer p for the workers in group j of the first level.
        real_worker_bytes: The bytes that each worker would send on average if the N workers were separate machines,
            including the agreement on shifts.
        sent_bytes: The bytes that this rank sent to other ranks, including the agreement on shifts.
    """

    shifts: list[list[int]]
    real_worker_bytes: int
    sent_bytes: int = 0


class Summation(ABC):
    """The base class of sums for a given number of workers.

    Args:
        sum: The description of the sum.
        workers: The workers whose gradients are added.
        shifts: The scaling rule with its state.
        agreeing: The workers that agree on magnitudes, by default `workers`.

    Raises:
        ValueError: The settings do not fit together or do not fit the number of workers.
    """

    def __init__(self, sum: Sum, workers: Workers, shifts: Shifts, agreeing: Workers | None = None) -> None:
        self.sum, self.workers, self.shifts = sum, workers, shifts
        self.agreeing = agreeing or workers  # the workers that agree on magnitudes
        self.n_workers = workers.world_size
        self.wire = (
            sum  # the description of the values that are sent, which differs from the sum with compat=cpd
        )
        self.unrounded = False  # whether values are sent without rounding, as with compat=cpd
        self.levels = sum.ordering.levels(self.n_workers)

    @property
    def longest_chain(self) -> int | None:
        """The largest number of rounded additions that one worker's value passes through, or None if unknown."""
        return self.sum.ordering.longest_chain(self.n_workers)

    def run(self, layers: Layers) -> SumReport:
        """Compute the sums. Collective.

        All ranks get the same bits, which equal those of one process that emulates all workers, except in native order.

        Raises:
            RankLost: Another rank is lost.
        """
        return self.emulate(layers) if self.workers.ranks == 1 else self.between(layers)

    @abstractmethod
    def emulate(self, layers: Layers) -> SumReport:
        """Compute the sums of workers that are all in this process."""

    @abstractmethod
    def between(self, layers: Layers) -> SumReport:
        """Compute the sums of workers on several ranks."""

    def report(
        self, layers: Layers, shifts: list[list[int]] | None = None, *, agreed: int = 0, sent_bytes: int = 0
    ) -> SumReport:
        """Return the report of a sum, including the traffic of the agreement.

        Args:
            layers: The gradients.
            shifts: The shifts.
            agreed: The number of exchanged magnitudes.
            sent_bytes: The payload bytes that this rank sent.
        """
        sharding = layers.shards.sharding if layers.shards else None
        payload = _payload_bytes(layers.numels, self.wire.fmt.code_bits, self.n_workers, sharding)
        return SumReport(
            shifts or [[0] * len(layers.names)],
            payload + agreement_bytes(agreed, self.agreeing.world_size),
            sent_bytes + agreement_bytes(agreed, self.agreeing.ranks),
        )

    def total(self, values: Sequence[Tensor], how: Sum, stream: RandomStream | None) -> Tensor:
        """Add received values in the given order, and round every partial sum."""
        if self.unrounded:
            return add_unrounded(values, how.fmt, kahan=how.kahan)
        return accumulate(values, how, stream)

    def group_of(self, worker: int) -> int:
        """Return the group of the first level to which a worker belongs."""
        return self._place(worker)[0]

    def sent_by(self, worker: int, gradient_n: Tensor, layer: str, shift: int, key: tuple) -> Tensor:
        """Return the rounded values of a worker's gradient that the other workers receive."""
        return scale(
            quantize_scaled(gradient_n, shift, self.sum, self.random_stream(worker, layer, key)), -shift
        )

    def random_stream(self, worker: int, layer: str, key: tuple, start: int = 0) -> RandomStream | None:
        """Return the random numbers for rounding a worker's gradient, beginning at element `start` of the layer."""
        j, place = self._place(worker)
        return self.sum.random_stream(*key, layer + self.levels[0].marks[j], "worker", place, start=start)

    def _place(self, worker: int) -> tuple[int, int]:
        """Return the index of a worker's group in the first level and the worker's index in the group."""
        return divmod(worker, len(self.levels[0].groups[0]))


@lru_cache(maxsize=16)
def _payload_bytes(numels: tuple[int, ...], bits: int, n_workers: int, sharding: Sharding | None) -> int:
    """Return the bytes of gradients that each worker would send if the workers were separate machines."""
    layout = Layout(numels, bits, n_workers, 1, sharding)
    return layout.scattered_bytes() if sharding else layout.sent_bytes()
