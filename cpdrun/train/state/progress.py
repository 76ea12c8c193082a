"""How far a run is: what a checkpoint keeps beside the learner."""

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cpdrun.record.measure import Measure


@dataclass
class Progress:
    """How far a run is: `step` steps into epoch `epoch`, both counted from 0."""

    epoch: int = 0
    step: int = 0
    train_seconds: float = 0.0
    nonfinite: int = 0  # gradient elements that were inf or NaN, this epoch
    losses_SxN: Tensor | None = None  # of this epoch; this rank's workers are set, the others zero
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)  # this epoch's last statistics
    metrics: dict[str, float] = field(default_factory=dict)  # of the last whole epoch
    best: dict[str, Any] = field(default_factory=dict)  # metric, value and epoch of the best epoch so far
    wire: dict[str, int] = field(default_factory=dict)  # sums of the learner's `wire_bytes` over ...
    wire_steps: int = 0  # ... so many steps

    def count_bytes(self, of_step: dict[str, int]) -> None:
        self.wire = {key: self.wire.get(key, 0) + n for key, n in of_step.items()}
        self.wire_steps += 1

    def remember_best(self, metric: str, measure: Measure) -> None:
        """Of the epochs whose value is a number; the first of equals."""
        value = self.metrics[metric]
        sign = 1 if measure.higher_is_better else -1
        if math.isfinite(value) and (not self.best or sign * value > sign * self.best["value"]):
            self.best = {"metric": metric, "value": value, "epoch": self.epoch + 1}

    def bytes_per_step(self) -> dict[str, int]:
        """The mean: a step whose gradients travel in fp32 (full_precision) sends more than others."""
        return {key: round(n / self.wire_steps) for key, n in self.wire.items()}
