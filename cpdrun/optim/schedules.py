"""Learning-rate schedules, which are pure functions of the progress of training.

A schedule is called as `factor = schedule(epoch, epochs)`, where `epoch` is a float from 0 to `epochs` (the step
divided by the steps per epoch). It returns the factor by which the learning rate of the optimizer is multiplied for
this step.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


def linear_warmup(epoch: float, warmup_epochs: float, start: float) -> float:
    """Return a factor that rises linearly from `start` to 1 over `warmup_epochs` and stays at 1.

    The source is Goyal et al., arXiv 1706.02677, section 2.2.
    """
    if epoch >= warmup_epochs:
        return 1.0
    return start + (1.0 - start) * epoch / warmup_epochs


@dataclass(frozen=True)
class Cosine:
    """Warm-up, then half a cosine from 1 to `final` (Loshchilov and Hutter, arXiv 1608.03983)."""

    warmup_epochs: float
    warmup_start: float
    final: float

    def __call__(self, epoch: float, epochs: float) -> float:
        if epoch < self.warmup_epochs:
            return linear_warmup(epoch, self.warmup_epochs, self.warmup_start)
        done = (epoch - self.warmup_epochs) / max(epochs - self.warmup_epochs, 1e-9)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))


@dataclass(frozen=True)
class Step:
    """Warm-up, then a multiplication by `gamma` at the start of each epoch in `milestones`."""

    warmup_epochs: float
    warmup_start: float
    milestones: Sequence[float]
    gamma: float

    def __call__(self, epoch: float, epochs: float) -> float:
        drops = sum(epoch >= milestone for milestone in self.milestones)
        return linear_warmup(epoch, self.warmup_epochs, self.warmup_start) * self.gamma**drops


@dataclass(frozen=True)
class Poly:
    """Warm-up, then polynomial decay (1 - epoch / epochs) ** power from 1 to `final`.

    The source is Chen et al., DeepLab, arXiv 1606.00915, section 4.1.

    Attributes:
        warmup_epochs: The number of epochs of the warm-up.
        warmup_start: The factor at the start of the warm-up.
        power: The exponent of the decay.
        final: The factor at the end.
        decay_after_warmup: Whether the epochs of the decay are counted from the end of the warm-up, not from the start.
    """

    warmup_epochs: float
    warmup_start: float
    power: float
    final: float
    decay_after_warmup: bool

    def __call__(self, epoch: float, epochs: float) -> float:
        first = self.warmup_epochs if self.decay_after_warmup else 0.0
        done = max(0.0, epoch - first) / max(epochs - first, 1e-9)
        decay = self.final + (1.0 - self.final) * max(0.0, 1.0 - done) ** self.power
        return linear_warmup(epoch, self.warmup_epochs, self.warmup_start) * decay


@dataclass(frozen=True)
class PiecewiseLinear:
    """Linear interpolation between (epoch, factor) points, multiplied by a warm-up.

    Before the first point and after the last point, the factor is constant.

    Attributes:
        points: The points, in order of their epochs.
        warmup_epochs: The number of epochs of the warm-up.
        warmup_start: The factor at the start of the warm-up.

    Raises:
        ValueError: There are fewer than two points, or their epochs do not increase.
    """

    points: Sequence[Sequence[float]]
    warmup_epochs: float
    warmup_start: float

    def __post_init__(self) -> None:
        epochs = [point[0] for point in self.points]
        if len(epochs) < 2 or any(a >= b for a, b in itertools.pairwise(epochs)):
            raise ValueError(
                "schedule.points must be two or more pairs [epoch, factor] with increasing epochs, not "
                f"{self.points}"
            )

    def __call__(self, epoch: float, epochs: float) -> float:
        return linear_warmup(epoch, self.warmup_epochs, self.warmup_start) * self._line(epoch)

    def _line(self, epoch: float) -> float:
        for (e0, f0), (e1, f1) in itertools.pairwise(self.points):
            if epoch < e1:
                return f0 + (f1 - f0) * max(0.0, epoch - e0) / (e1 - e0)
        return self.points[-1][1]
