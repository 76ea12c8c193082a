"""Scaling rules: one power-of-two shift per layer and step, the same on all workers.

APS, auto-precision scaling: Han, Demmel and You, "Auto-Precision Scaling for Distributed Deep Learning"
(arXiv:1911.08907). With E = max over workers of ceil(log2(max|g * N|)), every worker sends g * 2^shift,
where shift = emax - E. The sum of N such values is at most 2^emax, so nothing overflows, and the largest
gradients use the format's upper end. What differs from the paper is how E is agreed on: see `magnitudes.py`.

inf and NaN take no part in E: they are sent as they are and stay visible in the sum, and the finite
elements of the layer keep the shift they would have had. Without a finite non-zero element the shift is 0.

A shift belongs to a layer: groups of workers, buckets and splits into ranks cannot disagree on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from custom_fp import Format
from torch import Tensor

from cpdrun.comm.sums.magnitudes import Agreement, Magnitudes, NotAsked, StepBefore, ThisStep, sum_exponent
from cpdrun.comm.sums.orders import Level
from cpdrun.comm.workers import Workers


class ScalingRule(ABC):
    """Chooses shifts; `g * 2^shift` is what a worker rounds and sends. One class and one yaml a rule."""

    magnitudes: ClassVar[type[Magnitudes]] = ThisStep  # which ones it goes by

    @abstractmethod
    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        """Of one layer: a pure function. magnitude: the largest of the workers that are added up, 0 where all is zero;
        summands: how many they are. Asked once for each group of workers, at each level of the order."""


class NoScaling(ScalingRule):
    """Gradients are sent as they are: the baseline."""

    magnitudes = NotAsked

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

    magnitudes = StepBefore

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
            if level.passes_on(j):
                shifts.append([0] * len(layers))
                continue
            magnitudes = self.magnitudes.of(level.names(layers, j), agreement, j * len(layers))
            by_layer = zip(layers, magnitudes, strict=True)
            shifts.append([self.rule.shift(layer, m, len(group), fmt) for layer, m in by_layer])
        return shifts, agreement.agreed
