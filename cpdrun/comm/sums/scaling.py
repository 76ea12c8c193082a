"""Scaling rules: one power-of-two shift per layer and step, the same on all workers.

APS, auto-precision scaling: Han, Demmel and You, "Auto-Precision Scaling for Distributed Deep Learning"
(arXiv:1911.08907). With E = max over workers of ceil(log2(max|g * N|)), every worker sends g * 2^shift,
where shift = emax - E. The sum of N such values is at most 2^emax, so nothing overflows, and the largest
gradients use the format's upper end.

What differs from the paper: it agrees on E in 8 bits. A float32 gradient has E in -149 .. 128 +
ceil(log2 N), more values than that, so a tiny or huge layer would get a wrong shift. Here the workers agree
on max|g| itself, by its float32 bit pattern (those of non-negative floats are ordered as the floats are), in
one int32 MAX all-reduce for all layers; each computes the same E from it, exactly, for subnormals too.

inf and NaN take no part in E: they are sent as they are and stay visible in the sum, and the finite
elements of the layer keep the shift they would have had. Without a finite non-zero element the shift is 0.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from custom_fp import Format
from torch import Tensor

from cpdrun.comm.sums.recipe import Level
from cpdrun.comm.wire.layout import ceil_div


def largest_magnitude(x: Tensor) -> Tensor:
    """max|x| over the finite elements of a float32 tensor, exact, 0-d; 0 where there are none."""
    if x.numel() == 0:
        return x.new_zeros(())
    if not x.is_cuda:  # one pass, no temporary; a GPU would be waited for, to ask whether it is finite
        low, high = torch.aminmax(x)
        if torch.isfinite(magnitude := torch.maximum(-low, high)):
            return magnitude
    return torch.where(torch.isfinite(x), x, 0.0).abs().amax()


def sum_exponent(magnitude: float, summands: int) -> int:
    """ceil(log2(magnitude * summands)), exact: 24 bits times a small integer fit a double. magnitude > 0."""
    mantissa, exponent = math.frexp(magnitude * summands)
    return exponent - (mantissa == 0.5)


class Magnitudes:
    """max|g| of each layer over all workers, agreed on demand: a rule that never asks pays nothing."""

    def __init__(
        self, local: Callable[[], Sequence[Tensor]], group: dist.ProcessGroup | None = None, ranks: int = 1
    ) -> None:
        """local: gives this rank's `largest_magnitude` of each layer; ranks: the size of the group."""
        self._local: Callable[[], Sequence[Tensor]] | None = local
        self._group, self._ranks = group, ranks
        self._bits: Tensor | None = None
        self._work: dist.Work | None = None

    def start(self) -> None:
        """Begins the agreement; `wait` completes it, now or steps later. Collective."""
        if self._bits is not None:
            return
        self._bits = torch.stack(list(self._local())).view(torch.int32)
        self._local = None  # it holds on to the gradients, and the agreement may be kept for a step
        if self._ranks > 1:
            self._work = dist.all_reduce(self._bits, dist.ReduceOp.MAX, group=self._group, async_op=True)

    def wait(self) -> list[float]:
        self.start()
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._bits.view(torch.float32).tolist()

    def part(self, start: int, stop: int) -> "Magnitudes":
        """Those of layers [start, stop), from the same agreement."""
        return _Part(self, start, stop)

    @property
    def agreed(self) -> int:
        """How many magnitudes took part in the agreement; 0 where nobody has asked."""
        return 0 if self._bits is None else self._bits.numel()


class _Part(Magnitudes):
    def __init__(self, whole: Magnitudes, start: int, stop: int) -> None:
        self._whole, self._start, self._stop = whole, start, stop

    def start(self) -> None:
        self._whole.start()

    def wait(self) -> list[float]:
        return self._whole.wait()[self._start : self._stop]

    def part(self, start: int, stop: int) -> Magnitudes:
        return _Part(self._whole, self._start + start, self._start + stop)


def agreement_bytes(values: int, machines: int) -> int:
    """What each of some machines sends to agree on so many magnitudes: a ring all-reduce of int32, rounded up."""
    return ceil_div(2 * (machines - 1) * 4 * values, machines)


def shifts_of_level(
    rule: "ScalingRule", level: Level, layers: Sequence[str], magnitudes: Magnitudes, fmt: Format
) -> list[list[int]]:
    """shifts[j][p] of group j and layer p: the rule is asked once for each group, about that group alone.

    magnitudes: len(layers) for each group, group after group. Collective where the rule waits.
    """
    shifts = []
    for j, group in enumerate(level.groups):
        if level.passes_on(j):
            shifts.append([0] * len(layers))
            continue
        of_group = magnitudes.part(j * len(layers), (j + 1) * len(layers))
        shifts.append(rule.shifts(level.names(layers, j), of_group, len(group), fmt))
    return shifts


class ScalingRule(ABC):
    """Chooses shifts; `g * 2^shift` is what a worker rounds and sends. One class and one yaml a rule."""

    @abstractmethod
    def shifts(self, layers: Sequence[str], magnitudes: Magnitudes, summands: int, fmt: Format) -> list[int]:
        """One shift per layer, equal on all ranks: a pure function of `magnitudes` and of earlier steps.

        layers: names, the key of anything remembered between steps. summands: how many values are added. Asked
        once for each group of workers that is added up, at each level of the order, under names of its own.
        Collective where it waits.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers between steps, for a checkpoint. Collective."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, the checkpoint has {sorted(state)}")


class NoScaling(ScalingRule):
    """Gradients are sent as they are: the baseline."""

    def shifts(self, layers: Sequence[str], magnitudes: Magnitudes, summands: int, fmt: Format) -> list[int]:
        return [0] * len(layers)


class APS(ScalingRule):
    """shift = emax - ceil(log2(max|g| * summands)) - margin, from this step's gradients."""

    def __init__(self, margin: int = 0) -> None:
        self.margin = margin

    def shift(self, magnitude: float, summands: int, fmt: Format) -> int:
        """The shift of a layer whose largest magnitude is known; 0 for an all-zero layer."""
        if magnitude == 0.0:
            return 0
        return fmt.emax - sum_exponent(magnitude, summands) - self.margin

    def shifts(self, layers: Sequence[str], magnitudes: Magnitudes, summands: int, fmt: Format) -> list[int]:
        return [self.shift(magnitude, summands, fmt) for magnitude in magnitudes.wait()]


class DelayedAPS(APS):
    """APS with the magnitudes of the step before: nobody waits for an agreement before sending.

    This step's agreement travels beside the gradients and is read in the next step. A gradient that grows by
    more than 2^margin from one step to the next overflows (see `overflow` in conf/sync). A layer seen for
    the first time, or whose gradient was all zero, is agreed on at once.
    """

    def __init__(self, margin: int = 1) -> None:
        super().__init__(margin)
        self._known: dict[str, float] = {}
        self._under_way: list[tuple[list[str], Magnitudes]] = []

    def shifts(self, layers: Sequence[str], magnitudes: Magnitudes, summands: int, fmt: Format) -> list[int]:
        self._settle(set(layers))
        magnitudes.start()
        if any(self._known.get(layer, 0.0) == 0.0 for layer in layers):
            self._known.update(zip(layers, magnitudes.wait(), strict=True))
        shifts = [self.shift(self._known[layer], summands, fmt) for layer in layers]
        self._under_way.append((list(layers), magnitudes))
        return shifts

    def _settle(self, layers: set[str]) -> None:
        """Completes the earlier agreements on any of these layers."""
        for names, magnitudes in self._under_way:
            if not layers.isdisjoint(names):
                self._known.update(zip(names, magnitudes.wait(), strict=True))
        self._under_way = [(names, m) for names, m in self._under_way if layers.isdisjoint(names)]

    def state_dict(self) -> dict[str, Any]:
        self._settle({name for names, _ in self._under_way for name in names})
        return {"magnitudes": dict(self._known)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known = dict(state["magnitudes"])
