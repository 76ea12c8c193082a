"""The effects of a format, a scaling rule and a reduction order on the gradients that workers exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from custom_fp.formats.scalar import Format

from cpdrun.comm.hybrid import FullPrecision
from cpdrun.comm.sums.codec import quantize_scaled, scale
from cpdrun.comm.sums.feedback import ErrorFeedback
from cpdrun.comm.sums.scaling import ScalingRule
from cpdrun.comm.sums.sum import FP32, Sum
from cpdrun.train.instantiate import part as made
from cpdrun.train.precision.loss_scale import log2_of
from cpdrun.whatif.collect.observation import Observation, TensorStatistics
from cpdrun.whatif.simulate.layer_effect import LayerEffect
from cpdrun.whatif.simulate.multi_step import MultiStepSums
from cpdrun.whatif.simulate.rounding_error import RoundingError, rounding_error_of, rounding_error_of_values
from cpdrun.whatif.simulate.worker_sums import first_shifts, simulate_sums

# The syncs that add gradients with a `Sum`.
SUMS_HERE = ("AllReduceSync", "decoded", "ShardedSync")


@dataclass(frozen=True)
class Gradients:
    """Compute the effects of one configuration on the gradients that workers exchange.

    Call the instance with one step after another, in ascending order, because `following` accumulates the steps.

    Attributes:
        how: The sum, without error feedback.
        rule: The scaling rule; None if gradients are not scaled.
        full: The parameters and epochs whose gradients are exchanged in full precision.
        places: The index of each parameter by name.
        steps_an_epoch: The number of steps per epoch.
        seed: The seed of stochastic rounding.
        loss_shift: log2 of the config's loss scale divided by the loss scale of the observed run.
        following: The sums over several steps.
    """

    how: Sum
    rule: ScalingRule | None
    full: FullPrecision
    places: dict[str, int]
    steps_an_epoch: int
    seed: int
    loss_shift: int
    following: MultiStepSums

    @classmethod
    def of(cls, observation: Observation, config: Mapping[str, Any], said: list[str]) -> Gradients | None:
        """Create an instance for a resolved config; None if its sync does not add gradients with a `Sum`.

        Args:
            observation: The observed tensors.
            config: The resolved configuration.
            said: Receives a sentence for each part of the config that cannot be simulated.

        Raises:
            ValueError: The parts of the config are not compatible.
        """
        sync = config["sync"]
        name = sync["_target_"].rsplit(".", 1)[-1]
        if name not in SUMS_HERE:
            said.append(f"gradient: what {name} sends is no sum of gradients in a format: not seen")
            return None
        knobs = {f.name: sync[f.name] for f in fields(Sum)[1:] if f.name in sync}
        how = Sum.of(config["format"], **knobs)
        following = MultiStepSums(ErrorFeedback() if how.error_feedback else None)
        if how.error_feedback:
            said.append(
                "gradient: what error feedback gives back in later steps, which is in steps_cosine alone"
            )
            how = replace(how, error_feedback=False)
        rule = made("scaling", config["scaling"]) if config["aps"] else None
        about, names = observation.about, observation.about["layers"]
        full = FullPrecision(tuple(names), epochs=about["epochs"], **config["full_precision"])
        places = {name: p for p, name in enumerate(names)}
        if config["world_size"] != about["world_size"]:
            said.append(
                f"gradient: world_size={config['world_size']}, and {about['world_size']} workers were seen: "
                "it is their sum that is judged"
            )
        return cls(
            *(how, rule, full, places, about["steps_an_epoch"], config["seed"], loss_shift(about, config)),
            following,
        )

    def __call__(self, step: int, layers: Mapping[str, TensorStatistics]) -> list[LayerEffect]:
        """Return the effects on the gradient of each layer in one step, in the order of `layers`."""
        in_full = [self.full.covers(self.places[name], step // self.steps_an_epoch) for name in layers]
        found: dict[str, LayerEffect] = {}
        for full in (False, True):
            chosen = [name for name, of in zip(layers, in_full, strict=True) if of == full]
            how, rule = (self.how.in_full_precision(), None) if full else (self.how, self.rule)
            if chosen:
                of_chosen = self._parts(how, rule, {name: layers[name] for name in chosen}, step)
                found |= dict(zip(chosen, of_chosen, strict=True))
        return [found[name] for name in layers]

    def _parts(
        self, how: Sum, rule: ScalingRule | None, layers: Mapping[str, TensorStatistics], step: int
    ) -> list[LayerEffect]:
        names, seen = list(layers), list(layers.values())
        scale_by = np.float32(2.0**self.loss_shift)
        values, extremes, maxima = (
            [s.samples[what] * scale_by for s in seen] for what in ("values", "extremes", "maxima")
        )
        given = (how, rule, names, values, extremes, maxima, (self.seed, step))
        totals, results = simulate_sums(*given)
        if self.following.feedback is not None and how is self.how:
            results = self.following.sum_with_feedback(*given, [s.numel for s in seen])
        for name, x, result, s in zip(names, values, results, seen, strict=True):
            self.following.add(step, name, x, result, s.numel)
        shifts = first_shifts(how, rule, names, torch.from_numpy(np.stack(maxima, 1)))
        groups = how.ordering.levels(len(maxima[0]))[0].groups
        parts = []
        for p, s in enumerate(seen):
            of_groups = [(shifts[j][p], len(group)) for j, group in enumerate(groups)]
            whole, is_exact = self._rounded(how, s, of_groups)
            n = values[p].shape[1]
            weighed = totals[p].times(s.numel / n) if n else totals[p]
            mean = sum(shift * n for shift, n in of_groups) / len(maxima[p])
            parts.append(LayerEffect(how.fmt.name, mean, whole, is_exact, weighed))
        return parts

    def _rounded(
        self, how: Sum, seen: TensorStatistics, of_groups: Sequence[tuple[int, int]]
    ) -> tuple[RoundingError, bool]:
        """Compute the rounding-error statistics of the workers' gradients for one layer.

        Args:
            how: The sum that is used for the layer.
            seen: The observed gradients of the layer.
            of_groups: The shift and the number of workers of each group in the first level of the reduction order.

        Returns:
            The statistics, and whether they are exact. The table is shared by all workers. If groups have different
            shifts, each shift is applied to the whole table and weighted by its share of the workers, which is not
            exact.
        """
        if isinstance(how.fmt, Format) and how.rounding == "nearest_even":
            workers = sum(n for _, n in of_groups)
            by_shift: dict[int, int] = {}
            for shift, n in of_groups:
                by_shift[shift] = by_shift.get(shift, 0) + n
            found = [
                rounding_error_of(seen, how.fmt, shift + self.loss_shift).times(n / workers)
                for shift, n in by_shift.items()
            ]
            narrow = how.fmt.mantissa_bits <= 10 or how.fmt == FP32
            return reduce(add, found), len(by_shift) == 1 and narrow
        x_Nxn = torch.from_numpy(np.array(seen.samples["values"]))
        shifts = [shift + self.loss_shift for shift, n in of_groups for _ in range(n)]
        key = (self.seed, "observed")
        largest = getattr(how.fmt, "max", math.inf)
        weight = seen.numel / max(1, x_Nxn.shape[1])
        found = []
        for w, (x_n, shift) in enumerate(zip(x_Nxn, shifts, strict=True)):
            rounded_n = scale(quantize_scaled(x_n, shift, how, how.draw(*key, w)), -shift)
            found.append(
                rounding_error_of_values(x_n.numpy(), rounded_n.numpy(), math.ldexp(largest, -shift))
            )
        return reduce(add, found).times(weight), False


def loss_shift(about: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Return log2 of the factor by which the config's loss scale enlarges gradients, relative to the observed run.

    Args:
        about: The facts about the observed run (`Observation.about`).
        config: The resolved configuration.
    """
    setting = config["precision"].get("loss_scale", 1.0) if isinstance(config["precision"], Mapping) else 1.0
    return log2_of(setting) - round(math.log2(about.get("loss_scale", 1.0)))
