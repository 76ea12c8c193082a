"""Sum the sampled gradients of N workers as a configuration does.

`cpdrun.comm.sums` computes the sums, as in a real run, so formats, orders, rounding, Kahan summation, and compat
settings have the same effect.

A layer is scaled by 2^shift, which depends on the largest magnitude in the whole layer. For the first level of a
reduction order, each worker's largest magnitude was observed. At later levels, only the sampled elements and the
element whose sum over all workers is largest are known, and the shift follows from the largest of them. The scaling
rule `aps_delayed` uses magnitudes of the same step, because the previous step was not observed.

Shapes: N workers, n sampled elements of a layer, P layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from torch import Tensor

from cpdrun.comm.sums import summation_of
from cpdrun.comm.sums.error_feedback import ErrorFeedback
from cpdrun.comm.sums.magnitudes import CurrentStep
from cpdrun.comm.sums.orders import Level
from cpdrun.comm.sums.scaling import ScalingRule, Shifts
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summation import Layers
from cpdrun.comm.workers import Workers
from cpdrun.whatif.simulate.rounding_error import Additive


@dataclass(frozen=True)
class SumAccuracy(Additive):
    """The accuracy of one layer's sum over workers in one step.

    S is the exact and s the computed sum over workers, restricted to the sampled elements. S2 and s2 are the sums over
    workers 0 and 1 only.

    Attributes:
        exact: ||S||^2.
        error: ||s - S||^2.
        result: ||s||^2.
        product: The inner product of s and S.
        first_exact: ||S2||^2.
        first_error: ||s2 - S2||^2, the error of the first addition.
    """

    exact: float = 0.0
    error: float = 0.0
    result: float = 0.0
    product: float = 0.0
    first_exact: float = 0.0
    first_error: float = 0.0

    def figures(self) -> dict[str, float]:
        """Return cosine, sum_error, and growth (see `effects.py`). Undefined statistics are NaN.

        All of them are NaN if the exact sum is zero or the error is not finite.
        """
        if not (self.exact > 0 and math.isfinite(self.error)):
            return dict.fromkeys(("cosine", "sum_error", "growth"), math.nan)
        error = math.sqrt(self.error / self.exact)
        first = math.sqrt(self.first_error / self.first_exact) if self.first_exact else 0.0
        norms = math.sqrt(self.exact * self.result)
        return {
            "cosine": self.product / norms if norms else math.nan,
            "sum_error": error,
            "growth": error / first if first > 0 and math.isfinite(first) else math.nan,
        }


@dataclass(frozen=True)
class WorkerGradients:
    """The observed gradients of all workers for P layers in one step.

    Attributes:
        names: The names of the layers.
        values: The sampled elements of each layer, (N, n) float32.
        extremes: For each layer, the workers' values of the element whose sum over all workers has the largest
            magnitude, (N, 1) float32.
        maxima: The largest finite magnitude of each worker in each layer, (N,) float32.
        numels: The number of elements of each layer.
        key: The random key for stochastic rounding, such as (seed, step).
    """

    names: Sequence[str]
    values: Sequence[np.ndarray]
    extremes: Sequence[np.ndarray]
    maxima: Sequence[np.ndarray]
    numels: Sequence[int]
    key: tuple

    @property
    def stacked_maxima(self) -> Tensor:
        """The largest finite gradient magnitude of each of the N workers in each of the P layers, with shape (N, P)."""
        return torch.from_numpy(np.stack(self.maxima, 1))

    def with_extremes(self, values: Sequence[Tensor], rule: ScalingRule | None) -> list[Tensor]:
        """Append each layer's extremes to its values, (N, n).

        Later levels choose their shifts by them. Without a rule, there are no shifts. Then nothing is appended, because
        another element would change the blocks of formats with scales.
        """
        if rule is None:
            return [x_Nxn.contiguous() for x_Nxn in values]
        pairs = zip(values, self.extremes, strict=True)
        return [torch.cat([x_Nxn, torch.from_numpy(end_Nx1)], 1) for x_Nxn, end_Nx1 in pairs]


class ObservedShifts(Shifts):
    """Choose the first level's shifts by the observed maxima of whole layers, (N, P)."""

    def __init__(self, rule: ScalingRule | None, maxima_NxP: Tensor):
        super().__init__(rule)
        if self.needs_agreement:
            self.magnitudes = CurrentStep()
        self.maxima_NxP = maxima_NxP

    def of_level(
        self,
        level: Level,
        layers: Sequence[str],
        local: Callable[[], Sequence[Tensor]],
        fmt: NumberFormat,
        workers: Workers,
    ) -> tuple[list[list[int]], int]:
        if level.first:
            rows = [self.maxima_NxP[group.start : group.stop].amax(0) for group in level.groups]
            return super().of_level(level, layers, lambda: list(torch.cat(rows)), fmt, workers)
        return super().of_level(level, layers, local, fmt, workers)


class _FixedShifts(ScalingRule):
    """A scaling rule with a given shift for each layer."""

    def __init__(self, shifts: dict[str, int]):
        self.shifts = shifts

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        return self.shifts[layer]


def first_shifts(reduction: Sum, rule: ScalingRule | None, given: WorkerGradients) -> list[list[int]]:
    """Return the shifts of the first level, as shifts[j][p] for group j and layer p."""
    workers = Workers(len(given.maxima[0]))
    level = reduction.ordering.levels(workers.world_size)[0]
    shifts = ObservedShifts(rule, given.stacked_maxima)
    return shifts.of_level(level, given.names, lambda: [], cast(Format, reduction.fmt), workers)[0]


def simulate_sums(
    reduction: Sum, rule: ScalingRule | None, given: WorkerGradients, shifts: Sequence[int]
) -> tuple[list[SumAccuracy], list[np.ndarray]]:
    """Return the accuracy and the sampled elements, (n,) float32, of each layer's sum in one step.

    `shifts` are those of workers 0 and 1 (`first_shifts`).

    Raises:
        ValueError: The sum cannot be computed with this number of workers.
    """
    stacks = given.with_extremes([torch.from_numpy(x) for x in given.values], rule)
    results = _run(reduction, ObservedShifts(rule, given.stacked_maxima), given, stacks)
    first = [stack[:2].contiguous() for stack in stacks]
    pair_reduction = (
        replace(reduction, order="rank", group_size=None) if reduction.ordering.is_defined else reduction
    )
    fixed = Shifts(_FixedShifts(dict(zip(given.names, shifts, strict=True)))) if rule is not None else None
    of_two = _run(pair_reduction, fixed, given, first) if len(stacks[0]) > 1 else [s[0] for s in first]
    totals = zip(given.values, results, of_two, strict=True)
    found = [_squares(x_Nxn, result.numpy(), pair.numpy()) for x_Nxn, result, pair in totals]
    return found, [
        result.numpy()[: x_Nxn.shape[1]] for x_Nxn, result in zip(given.values, results, strict=True)
    ]


def _run(
    reduction: Sum, shifts: Shifts | None, given: WorkerGradients, stacks: Sequence[Tensor]
) -> list[Tensor]:
    out = [torch.empty_like(stack[0]) for stack in stacks]
    summation_of(reduction, Workers(len(stacks[0])), shifts).run(Layers(given.names, stacks, out, given.key))
    return out


def _squares(values_Nxn: np.ndarray, result: np.ndarray, first: np.ndarray) -> SumAccuracy:
    n = values_Nxn.shape[1]  # results may have further elements, which come from the appended extremes
    exact = values_Nxn.astype(np.float64).sum(0)
    came, first_exact = result[:n].astype(np.float64), values_Nxn[:2].astype(np.float64).sum(0)
    first = first[:n].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return SumAccuracy(
            float(exact @ exact),
            float(((came - exact) ** 2).sum()),
            float(came @ came),
            float(came @ exact),
            float(first_exact @ first_exact),
            float(((first - first_exact) ** 2).sum()),
        )


@dataclass
class MultiStepSums:
    """The sums over workers, accumulated over several steps.

    Attributes:
        feedback: The residuals of the workers' error feedback; None without error feedback.
        came: For each layer, the total of the computed sums over all steps, (n,) float64.
        exact: For each layer, the total of the exact sums over all steps, (n,) float64.
        weights: The number of elements of each layer per sampled element; 0 for an empty layer.
        steps: The steps whose sums have been added.
    """

    feedback: ErrorFeedback | None
    came: dict[str, np.ndarray] = field(default_factory=dict)
    exact: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)

    def add(self, step: int, name: str, values_Nxn: np.ndarray, result_n: np.ndarray, numel: int) -> None:
        """Add one layer's sum in one step to the totals.

        values_Nxn are the workers' samples, where n may be 0, and result_n is their computed sum.
        """
        n = values_Nxn.shape[1]
        exact = values_Nxn.astype(np.float64).sum(0)
        self.steps.add(step)
        self.weights[name] = numel / n if n else 0.0
        self.came[name] = self.came.get(name, 0.0) + result_n.astype(np.float64)
        self.exact[name] = self.exact.get(name, 0.0) + exact

    def sum_with_feedback(
        self, reduction: Sum, rule: ScalingRule | None, given: WorkerGradients
    ) -> list[np.ndarray]:
        """Sum over workers with error feedback, (n,) for each layer. This updates the residuals."""
        feedback = self.feedback
        assert feedback is not None
        carried = [
            feedback.compensate(name, torch.from_numpy(x))
            for name, x in zip(given.names, given.values, strict=True)
        ]
        largest = [
            _largest(x_Nxn)
            if x_Nxn.shape[1] == numel
            else torch.maximum(torch.from_numpy(seen), _largest(x_Nxn))
            for seen, x_Nxn, numel in zip(given.maxima, carried, given.numels, strict=True)
        ]
        stacks = given.with_extremes(carried, rule)
        out = [torch.empty_like(stack[0]) for stack in stacks]
        summation = summation_of(
            reduction, Workers(len(stacks[0])), ObservedShifts(rule, torch.stack(largest, 1))
        )
        shifts = summation.run(Layers(given.names, stacks, out, given.key)).shifts
        for p, name in enumerate(given.names):
            for w, carried_n in enumerate(carried[p]):
                shift = shifts[summation.group_of(w)][p]
                feedback.keep(name, w, carried_n, summation.sent_by(w, carried_n, name, shift, given.key))
        return [total[: x.shape[1]].numpy() for total, x in zip(out, carried, strict=True)]

    def figures(self) -> dict[str, float]:
        """Return `steps_cosine` and `steps` (see `effects.py`), or nothing if no step was added."""
        if not self.steps:
            return {}
        products = {"came": 0.0, "exact": 0.0, "both": 0.0}
        with np.errstate(invalid="ignore", over="ignore"):
            for name, weight in self.weights.items():
                came, exact = self.came[name], self.exact[name]
                products["came"] += weight * float(came @ came)
                products["exact"] += weight * float(exact @ exact)
                products["both"] += weight * float(came @ exact)
        norms = math.sqrt(products["came"] * products["exact"])
        cosine = products["both"] / norms if 0 < norms < math.inf else math.nan
        return {"steps_cosine": cosine, "steps": float(len(self.steps))}


def _largest(x_Nxn: torch.Tensor) -> torch.Tensor:
    """Return the largest finite magnitude of each worker, (N,), or 0."""
    return x_Nxn.abs().nan_to_num(0.0, 0.0, 0.0).amax(1) if x_Nxn.shape[1] else x_Nxn.new_zeros(len(x_Nxn))
