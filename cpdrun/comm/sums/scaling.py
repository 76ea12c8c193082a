"""Scaling rules, which choose one power-of-two shift per layer and step, equal on all workers.

APS, auto-precision scaling: Han, Demmel and You, "Auto-Precision Scaling for Distributed Deep Learning"
(arXiv:1911.08907). Let E = max over workers of ceil(log2(max|g * N|)). Every worker sends g * 2^shift with
shift = emax - E. The sum of N such values is at most 2^emax, so nothing overflows, and the largest gradients use the
upper end of the format's range. The agreement on E differs from the paper (see `magnitudes.py`).

inf and NaN do not affect E. They are sent unchanged and remain visible in the sum. The shift of a layer without a
finite non-zero element is 0.

The shift of a layer does not depend on groups of ranks, on buckets, or on the assignment of workers to ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.sums.magnitudes import (
    Agreement,
    CurrentStep,
    Magnitudes,
    NoMagnitudes,
    PreviousStep,
    sum_exponent,
)
from cpdrun.comm.sums.orders import Level
from cpdrun.comm.wire.message_layout import Layout
from cpdrun.comm.workers import Workers


class ScalingRule(ABC):
    """The base class of rules that choose shifts. A worker rounds and sends `g * 2^shift`."""

    magnitudes: ClassVar[type[Magnitudes]] = CurrentStep  # the source of the magnitudes that the rule uses

    @abstractmethod
    def shift(self, layer: str, magnitude: float, summands: int, fmt: Any) -> int:
        """Return the shift of a layer.

        This is a pure function. It is called for each group of workers at each level of the order.

        Args:
            layer: The name of the layer.
            magnitude: The largest magnitude of the values that are added, or 0 if all are zero.
            summands: The number of values that are added.
            fmt: The format of the sum.
        """


class NoScaling(ScalingRule):
    """A rule that never scales: all shifts are 0. The other rules are compared with it."""

    magnitudes = NoMagnitudes

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Any) -> int:
        return 0


class APS(ScalingRule):
    """Auto-precision scaling (APS), based on the gradients of the current step.

    shift = emax - ceil(log2(max|g| * summands)) - margin. The shift of an all-zero layer is 0.
    """

    def __init__(self, margin: int = 0) -> None:
        self.margin = margin

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Any) -> int:
        if magnitude == 0.0:
            return 0
        return fmt.emax - sum_exponent(magnitude, summands) - self.margin


class DelayedAPS(APS):
    """APS based on the gradients of the previous step.

    If the largest magnitude of a layer grows by more than a factor of 2^margin from one step to the next, values may
    overflow (see `overflow` in conf/sync).
    """

    magnitudes = PreviousStep

    def __init__(self, margin: int = 1) -> None:
        super().__init__(margin)


class Shifts:
    """A scaling rule with the state of its magnitudes."""

    def __init__(self, rule: ScalingRule | None = None) -> None:
        self.rule = rule or NoScaling()
        self.magnitudes = self.rule.magnitudes()

    @property
    def scale(self) -> bool:
        """Whether the rule may scale gradients."""
        return not isinstance(self.rule, NoScaling)

    @property
    def needs_agreement(self) -> bool:
        """Whether ranks must exchange magnitudes to agree on a shift."""
        return self.magnitudes.needs_agreement

    def of_level(
        self,
        level: Level,
        layers: Sequence[str],
        local: Callable[[], Sequence[Tensor]],
        fmt: NumberFormat,
        workers: Workers,
    ) -> tuple[list[list[int]], int]:
        """Return the shifts of one level of a sum. Collective.

        Args:
            level: The level.
            layers: The names of the layers.
            local: A function that computes this rank's largest magnitude of each layer in each group of the level. The
                result contains all layers of the first group, then all layers of the second group, and so on.
            fmt: The format of the sum.
            workers: The workers that agree on magnitudes.

        Returns:
            A tuple: shifts[j][p], the shift of layer p in group j, and the number of exchanged magnitudes.
        """
        return self.of_agreement(level, layers, Agreement(local, workers), fmt)

    def of_agreement(
        self, level: Level, layers: Sequence[str], agreement: Agreement, fmt: NumberFormat
    ) -> tuple[list[list[int]], int]:
        """Return the shifts of one level, as `of_level` does, from an agreement that may already have started."""
        shifts = []
        for j, group in enumerate(level.groups):
            if level.is_passed_through(j):
                shifts.append([0] * len(layers))
                continue
            magnitudes = self.magnitudes.of(level.names(layers, j), agreement, j * len(layers))
            by_layer = zip(layers, magnitudes, strict=True)
            shifts.append([self.rule.shift(layer, m, len(group), fmt) for layer, m in by_layer])
        return shifts, agreement.agreed


# The number of segments per part. An agreement that starts after the first segment of a part then completes in time.
SEGMENTS = 4


class PrefetchedShifts:
    """The shifts of a sum with one group. The ranks agree on the shifts of a few layers at a time.

    The ranks compute and exchange the magnitudes of the next layers while they send the segments of earlier layers.
    This is possible if the segments of all owners contain the same layers, which is the case if each layer is divided
    into shards separately. In other layouts, the first segments contain elements of all layers, so there is a single
    agreement.

    The method `settle` is collective: all ranks must call it for the same segments in the same order.

    Args:
        rule: The scaling rule with its state.
        level: The only level of the sum.
        layers: The names of the layers.
        local: A function that computes this rank's `largest_magnitude` of a layer.
        fmt: The format of the sum.
        workers: The workers that agree on magnitudes.
        layout: The layout of the messages.

    Attributes:
        shifts: The shifts of the layers. A shift is valid once a segment that contains the layer is settled.
        agreed: The number of exchanged magnitudes.
    """

    def __init__(
        self,
        rule: Shifts,
        level: Level,
        layers: Sequence[str],
        local: Callable[[int], Tensor],
        fmt: NumberFormat,
        workers: Workers,
        layout: Layout,
    ) -> None:
        self.rule, self.level, self.layers, self.local = rule, level, list(layers), local
        self.fmt, self.workers = fmt, workers
        self.last = layout.last_layers
        self.ends = _ends(layout)  # for each part, the index after its last layer
        self.shifts, self.agreed = [0] * len(self.layers), 0
        self._settled = 0  # the number of parts whose shifts are known
        self._under_way: Agreement | None = None

    def settle(self, segment: int) -> None:
        """Wait until the shifts of all layers in a segment are known."""
        while self._settled < len(self.ends) and (
            self._settled == 0 or self._first(self._settled) <= self.last[segment]
        ):
            self.begin()
            assert self._under_way is not None
            first, end = self._first(self._settled), self.ends[self._settled]
            (found,), agreed = self.rule.of_agreement(
                self.level, self.layers[first:end], self._under_way, self.fmt
            )
            self.shifts[first:end] = found
            self.agreed += agreed
            self._settled, self._under_way = self._settled + 1, None

    def begin(self) -> None:
        """Start the agreement on the next part."""
        if self._under_way is None and self._settled < len(self.ends):
            part = range(self._first(self._settled), self.ends[self._settled])
            self._under_way = Agreement(lambda: [self.local(p) for p in part], self.workers)
            if self.rule.needs_agreement:
                self._under_way.start()

    def _first(self, part: int) -> int:
        return self.ends[part - 1] if part else 0


def _ends(layout: Layout) -> list[int]:
    """Return, for each part, the index after its last layer. A part contains a few segments of all owners."""
    ends: list[int] = []
    segments = 0
    for segment, layer in enumerate(layout.last_layers):
        segments += 1
        if segments >= SEGMENTS and segment + 1 < layout.segments and layer + 1 > (ends[-1] if ends else 0):
            ends.append(layer + 1)
            segments = 0
    layers = len(layout.numels)
    return [layers] if not ends or ends[-1] >= layers else [*ends, layers]
