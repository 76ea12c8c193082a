"""Simulate how a configuration rounds and adds the workers' gradients.

Shapes: N workers, n sampled elements of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from custom_fp.formats.scalar import Format

from cpdrun.comm.full_precision import FullPrecision
from cpdrun.comm.sums.codec import quantize_scaled, scale
from cpdrun.comm.sums.error_feedback import ErrorFeedback
from cpdrun.comm.sums.scaling import ScalingRule
from cpdrun.comm.sums.sum import FP32, Sum
from cpdrun.train.instantiate import part as made
from cpdrun.train.precision.base import log2_of
from cpdrun.whatif.collect.observation import Observation, TensorStatistics
from cpdrun.whatif.simulate.rounding_error import RoundingError, rounding_error_of, rounding_error_of_values
from cpdrun.whatif.simulate.worker_sums import (
    MultiStepSums,
    SumAccuracy,
    WorkerGradients,
    first_shifts,
    simulate_sums,
)

# The syncs that add gradients with a `Sum`.
SYNCS_WITH_SUMS = ("AllReduceSync", "decoded", "ShardedSync")
# Simulates one role at one step: given the step and each layer's statistics, it returns each layer's effect.
RoleSimulator = Callable[[int, Mapping[str, TensorStatistics]], "list[LayerEffect]"]


@dataclass(frozen=True)
class LayerEffect:
    """The effect of rounding one layer's tensor, for one role and step.

    Attributes:
        format: The name of the format.
        shift: The exponent of the scale 2^shift before rounding. For gradients, the mean over workers.
        error: The rounding-error statistics.
        exact: Whether `error` is exact, not approximated or computed from samples.
        total: The accuracy of the sum over workers, for gradients only.
        lost: The number of lost updates (nonzero updates that leave the weight unchanged) and of nonzero updates, both
            extrapolated from the sample to the layer. For updates only.
    """

    format: str
    shift: float
    error: RoundingError
    exact: bool
    total: SumAccuracy | None = None
    lost: tuple[float, float] | None = None


def figures(parts: Sequence[LayerEffect]) -> dict[str, float]:
    """Return the statistics over all parts together. Undefined statistics are NaN."""
    found = reduce(add, [part.error for part in parts]).figures()
    totals = [part.total for part in parts if part.total is not None]
    if totals:
        found |= reduce(add, totals).figures()
    lost = [part.lost for part in parts if part.lost is not None]
    if lost:
        of_all = sum(n for _, n in lost)
        found["update_lost"] = sum(n for n, _ in lost) / of_all if of_all else math.nan
    return found


@dataclass(frozen=True)
class GradientSimulator:
    """Simulate how one configuration rounds and adds the workers' gradients.

    Call the instance once for each step, in ascending order, because `multi_step` accumulates the steps.

    Attributes:
        reduction: The settings of the sum over workers, without error feedback.
        rule: The scaling rule; None if gradients are not scaled.
        full: The parameters and epochs whose gradients are exchanged in full precision.
        places: The index of each parameter, keyed by name.
        steps_per_epoch: The number of steps per epoch.
        seed: The seed of stochastic rounding.
        loss_shift: log2(the config's loss scale / the observed run's loss scale).
        multi_step: The sums over several steps.
    """

    reduction: Sum
    rule: ScalingRule | None
    full: FullPrecision
    places: dict[str, int]
    steps_per_epoch: int
    seed: int
    loss_shift: int
    multi_step: MultiStepSums

    @classmethod
    def of(
        cls, observation: Observation, config: Mapping[str, Any], uncovered: list[str]
    ) -> GradientSimulator | None:
        """Create a simulator, or return None if the config's sync does not add gradients with a `Sum`.

        `uncovered` receives a phrase for each part of the config that cannot be simulated.

        Raises:
            ValueError: The settings of the config are not compatible.
        """
        sync = config["sync"]
        name = sync["_target_"].rsplit(".", 1)[-1]
        if name not in SYNCS_WITH_SUMS:
            uncovered.append(f"gradient: {name} does not send a sum of gradients in a format")
            return None
        knobs = {f.name: sync[f.name] for f in fields(Sum)[1:] if f.name in sync}
        reduction = Sum.of(config["format"], **knobs)
        multi_step = MultiStepSums(ErrorFeedback() if reduction.error_feedback else None)
        if reduction.error_feedback:
            uncovered.append(
                "gradient: the error that error feedback returns in later steps, except in steps_cosine"
            )
            reduction = replace(reduction, error_feedback=False)
        rule = made("scaling", config["scaling"]) if config["aps"] else None
        about, names = observation.about, observation.about["layers"]
        full = FullPrecision(tuple(names), epochs=about["epochs"], **config["full_precision"])
        places = {name: p for p, name in enumerate(names)}
        if config["world_size"] != about["world_size"]:
            uncovered.append(
                f"gradient: world_size={config['world_size']}; the sum of {about['world_size']} observed workers "
                "was simulated"
            )
        return cls(
            reduction=reduction,
            rule=rule,
            full=full,
            places=places,
            steps_per_epoch=about["steps_an_epoch"],
            seed=config["seed"],
            loss_shift=loss_shift(about, config),
            multi_step=multi_step,
        )

    def __call__(self, step: int, layers: Mapping[str, TensorStatistics]) -> list[LayerEffect]:
        """Return the effect on each layer's gradient in one step."""
        in_full = [self.full.covers(self.places[name], step // self.steps_per_epoch) for name in layers]
        found: dict[str, LayerEffect] = {}
        for full in (False, True):
            chosen = [name for name, of in zip(layers, in_full, strict=True) if of == full]
            reduction, rule = (
                (self.reduction.in_full_precision(), None) if full else (self.reduction, self.rule)
            )
            if chosen:
                of_chosen = self._parts(reduction, rule, {name: layers[name] for name in chosen}, step)
                found |= dict(zip(chosen, of_chosen, strict=True))
        return [found[name] for name in layers]

    def _parts(
        self, reduction: Sum, rule: ScalingRule | None, layers: Mapping[str, TensorStatistics], step: int
    ) -> list[LayerEffect]:
        names, statistics = list(layers), list(layers.values())
        scale_by = np.float32(2.0**self.loss_shift)
        values, extremes, maxima = (
            [s.samples[what] * scale_by for s in statistics] for what in ("values", "extremes", "maxima")
        )
        numels = [s.numel for s in statistics]
        given = WorkerGradients(names, values, extremes, maxima, numels, (self.seed, step))
        shifts = first_shifts(reduction, rule, given)
        totals, results = simulate_sums(reduction, rule, given, shifts[0])
        if self.multi_step.feedback is not None and reduction is self.reduction:
            results = self.multi_step.sum_with_feedback(reduction, rule, given)
        for name, x, result, s in zip(names, values, results, statistics, strict=True):
            self.multi_step.add(step, name, x, result, s.numel)
        groups = reduction.ordering.levels(len(maxima[0]))[0].groups
        parts = []
        for p, s in enumerate(statistics):
            of_groups = [(shifts[j][p], len(group)) for j, group in enumerate(groups)]
            whole, is_exact = _rounding_error(reduction, s, of_groups, self.loss_shift, self.seed)
            n = values[p].shape[1]
            weighed = totals[p].times(s.numel / n) if n else totals[p]
            mean = sum(shift * n for shift, n in of_groups) / len(maxima[p])
            parts.append(LayerEffect(reduction.fmt.name, mean, whole, is_exact, weighed))
        return parts


def _rounding_error(
    reduction: Sum,
    statistics: TensorStatistics,
    of_groups: Sequence[tuple[int, int]],
    loss_shift: int,
    seed: int,
) -> tuple[RoundingError, bool]:
    """Return the rounding error of one layer's gradients, and whether it is exact.

    `of_groups` has the shift and the number of workers of each group in the first level of the reduction order. One
    table contains the gradients of all workers. If groups have different shifts, each shift is applied to the whole
    table, and the results are weighted by the sizes of the groups.
    """
    if isinstance(reduction.fmt, Format) and reduction.rounding == "nearest_even":
        workers = sum(n for _, n in of_groups)
        by_shift: dict[int, int] = {}
        for shift, n in of_groups:
            by_shift[shift] = by_shift.get(shift, 0) + n
        found = [
            rounding_error_of(statistics, reduction.fmt, shift + loss_shift).times(n / workers)
            for shift, n in by_shift.items()
        ]
        narrow = reduction.fmt.mantissa_bits <= 10 or reduction.fmt == FP32
        return reduce(add, found), len(by_shift) == 1 and narrow
    x_Nxn = torch.from_numpy(np.array(statistics.samples["values"]))
    shifts = [shift + loss_shift for shift, n in of_groups for _ in range(n)]
    key = (seed, "observed")
    largest = getattr(reduction.fmt, "max", math.inf)
    weight = statistics.numel / max(1, x_Nxn.shape[1])
    found = []
    for w, (x_n, shift) in enumerate(zip(x_Nxn, shifts, strict=True)):
        rounded_n = scale(quantize_scaled(x_n, shift, reduction, reduction.random_stream(*key, w)), -shift)
        found.append(rounding_error_of_values(x_n.numpy(), rounded_n.numpy(), math.ldexp(largest, -shift)))
    return reduce(add, found).times(weight), False


def loss_shift(about: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Return log2(the config's loss scale / the observed run's loss scale)."""
    setting = config["precision"].get("loss_scale", 1.0) if isinstance(config["precision"], Mapping) else 1.0
    return log2_of(setting) - round(math.log2(about.get("loss_scale", 1.0)))
