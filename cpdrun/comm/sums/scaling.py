"""Scaling rules: one power-of-two shift per layer and step, the same on all workers.

APS, auto-precision scaling: Han, Demmel and You, "Auto-Precision Scaling for Distributed Deep Learning"
(arXiv:1911.08907). With E = max over workers of ceil(log2(max|g * N|)), every worker sends g * 2^shift,
where shift = emax - E. The sum of N such values is at most 2^emax, so nothing overflows, and the largest
gradients use the format's upper end. What differs from the paper is how E is agreed on: see `magnitudes.py`.

inf and NaN take no part in E: they are sent as they are and stay visible in the sum, and the finite
elements of the layer keep the shift they would have had. Without a finite non-zero element the shift is 0.

A shift belongs to a layer: groups of workers, buckets and splits into ranks cannot disagree on it.

Shifts agreed on a few layers at a time: the magnitudes of the next ones are looked for, and agreed on, while
the segments of those before are on the wire.

That is possible where all owners' segments hold the same layers, as where each layer is cut in shards by itself. In any
other layout the first segments hold layers from everywhere: all are agreed on at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from custom_fp import Format
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
from cpdrun.comm.wire.layout import Layout
from cpdrun.comm.workers import Workers


class ScalingRule(ABC):
    """Chooses shifts; `g * 2^shift` is what a worker rounds and sends. One class and one yaml a rule."""

    magnitudes: ClassVar[type[Magnitudes]] = CurrentStep  # which ones it goes by

    @abstractmethod
    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        """Of one layer: a pure function. magnitude: the largest of the workers that are added up, 0 where all is zero;
        summands: how many they are. Asked once for each group of workers, at each level of the order."""


class NoScaling(ScalingRule):
    """Gradients are sent as they are: the baseline."""

    magnitudes = NoMagnitudes

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        return 0


class APS(ScalingRule):
    """shift = emax - ceil(log2(max|g| * summands)) - margin, from this step's gradients; 0 for an all-zero layer."""

    def __init__(self, margin: int = 0) -> None:
        self.margin = margin

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        if magnitude == 0.0:
            return 0
        return fmt.emax - sum_exponent(magnitude, summands) - self.margin


class DelayedAPS(APS):
    """APS with the magnitudes of the step before. A gradient that grows by more than 2^margin from one step to the next
    overflows (see `overflow` in conf/sync)."""

    magnitudes = PreviousStep

    def __init__(self, margin: int = 1) -> None:
        super().__init__(margin)


class Shifts:
    """A rule with the magnitudes that it goes by, through the steps of a run."""

    def __init__(self, rule: ScalingRule | None = None) -> None:
        self.rule = rule or NoScaling()
        self.magnitudes = self.rule.magnitudes()

    @property
    def scale(self) -> bool:
        """Whether gradients may be scaled at all."""
        return not isinstance(self.rule, NoScaling)

    @property
    def asks(self) -> bool:
        """Whether magnitudes are agreed on."""
        return self.magnitudes.asks

    def of_level(
        self,
        level: Level,
        layers: Sequence[str],
        local: Callable[[], Sequence[Tensor]],
        fmt: Format,
        workers: Workers,
    ) -> tuple[list[list[int]], int]:
        """shifts[j][p] of group j and layer p, and how many magnitudes were agreed on for them. Collective.

        local: gives this rank's largest magnitude of each layer, for each group of the level, group after group.
        """
        return self.of_agreement(level, layers, Agreement(local, workers), fmt)

    def of_agreement(
        self, level: Level, layers: Sequence[str], agreement: Agreement, fmt: Format
    ) -> tuple[list[list[int]], int]:
        """`of_level` with an agreement that may be under way."""
        shifts = []
        for j, group in enumerate(level.groups):
            if level.is_passed_through(j):
                shifts.append([0] * len(layers))
                continue
            magnitudes = self.magnitudes.of(level.names(layers, j), agreement, j * len(layers))
            by_layer = zip(layers, magnitudes, strict=True)
            shifts.append([self.rule.shift(layer, m, len(group), fmt) for layer, m in by_layer])
        return shifts, agreement.agreed


SEGMENTS = 4  # of a part: its agreement is queued behind the first one's bytes, and must not be waited for


class PrefetchedShifts:
    """Of a level of one group. `shifts` are those of the layers, known as far as `settle` was called; `agreed` counts
    magnitudes.

    local: this rank's `largest_magnitude` of a layer. Collective: all ranks settle the same segments, in order.
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
        self.ends = _ends(layout)  # where each part ends, in layers
        self.shifts, self.agreed = [0] * len(self.layers), 0
        self._settled = 0  # parts
        self._under_way: Agreement | None = None

    def settle(self, segment: int) -> None:
        """The shifts of all layers of a segment are known from here on."""
        while self._settled < len(self.ends) and (
            self._settled == 0 or self._first(self._settled) <= self.last[segment]
        ):
            self.begin()
            first, end = self._first(self._settled), self.ends[self._settled]
            (found,), agreed = self.rule.of_agreement(
                self.level, self.layers[first:end], self._under_way, self.fmt
            )
            self.shifts[first:end] = found
            self.agreed += agreed
            self._settled, self._under_way = self._settled + 1, None

    def begin(self) -> None:
        """With the part after those that are settled."""
        if self._under_way is None and self._settled < len(self.ends):
            part = range(self._first(self._settled), self.ends[self._settled])
            self._under_way = Agreement(lambda: [self.local(p) for p in part], self.workers)
            if self.rule.asks:
                self._under_way.start()

    def _first(self, part: int) -> int:
        return self.ends[part - 1] if part else 0


def _ends(layout: Layout) -> list[int]:
    """Parts of so many segments of all owners, or one of all layers."""
    ends, segments = [], 0
    for segment, layer in enumerate(layout.last_layers):
        segments += 1
        if segments >= SEGMENTS and segment + 1 < layout.segments and layer + 1 > (ends[-1] if ends else 0):
            ends.append(layer + 1)
            segments = 0
    layers = len(layout.numels)
    return [layers] if not ends or ends[-1] >= layers else [*ends, layers]
