"""The effects of a configuration on the tensors that a run observed: by role, by layer, by step and over all.

    underflow     The share of the nonzero finite values that are rounded to 0.
    saturation    The share of the nonzero finite values that exceed the largest value of the format.
    snr_db        The signal-to-noise ratio, 10 log10(sum x^2 / sum error^2). It is at most 200, which means that
                  nothing is lost. Values beyond the largest value count as if they were replaced by that value.
    bias          The mean error of the magnitudes divided by their mean. It is negative if magnitudes shrink.
    cosine        The cosine between a tensor and the rounded tensor. For gradients, the cosine between the workers' sum
                  and the exact sum.
    sum_error     ||s - S|| / ||S||, where s is the workers' sum and S is the exact sum.
    growth        sum_error divided by the error of the first addition, that of workers 0 and 1 alone.
    steps_cosine  For gradients, over all layers together: the cosine between the sums of all observed steps, added up,
                  and the exact sums. With error feedback, the workers' residuals are carried from each step to the next
                  (`multi_step.py`).
    steps         The number of steps that steps_cosine covers.
    update_lost   The share of the nonzero updates that leave the weight unchanged.

underflow, saturation, snr_db, bias and the cosine of roles other than gradients are exact over all observed elements if
the format has no scales and is rounded to nearest (`rounding_error.py`, which states the limits for formats with more
than 10 mantissa bits). Otherwise they are computed from samples or are approximations, and `exact` is false. The other
figures are always computed from samples. A figure is null if it is not defined, for example for a tensor of zeros or if
a sum is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpdrun.whatif.collect.observation import Observation, TensorStatistics
from cpdrun.whatif.simulate import tensors as computed
from cpdrun.whatif.simulate.gradients import Gradients
from cpdrun.whatif.simulate.layer_effect import LayerEffect, RoleSimulator, figures

FIGURES = ("underflow", "saturation", "snr_db", "bias", "cosine", "sum_error", "growth", "update_lost")


@dataclass
class Effects:
    """The effects of one configuration.

    Attributes:
        roles: {role: {"all": figures, "layers": {name: figures}, "steps": {step: figures}, "exact": bool}}. The figures
            are those of `FIGURES` that the role has. The figures of layers and of "all" also contain `exponents` (the
            number of values for each floor(log2 |x|)), `shift` (the mean shift; values are multiplied by 2^shift) and
            `format`.
        said: A sentence for each part of the configuration that was not observed or that is computed differently than
            in a run.
    """

    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"role": self.roles, "said": self.said}


def effects(observation: Observation, config: Mapping[str, Any]) -> Effects:
    """Compute the effects of a resolved config on observed tensors.

    Raises:
        ValueError: The parts of the config are not compatible.
    """
    found = Effects(said=list(observation.unseen))
    for role, judge in simulators_by_role(observation, config, found.said).items():
        parts = [
            (step, name, seen, part)
            for step, layers in observation.of(role).items()
            for (name, seen), part in zip(layers.items(), judge(step, layers), strict=True)
        ]
        if parts:
            found.roles[role] = _of_role(parts)
        if parts and isinstance(judge, Gradients):
            found.roles[role]["all"] |= _nulled(judge.following.figures())
    return found


def simulators_by_role(
    observation: Observation, config: Mapping[str, Any], said: list[str]
) -> dict[str, RoleSimulator]:
    """Return the function that computes the effects on each role.

    Args:
        observation: The observed tensors.
        config: The resolved configuration.
        said: Receives a sentence for each part of the config that cannot be simulated.

    Raises:
        ValueError: The parts of the config are not compatible.
    """
    gradients = Gradients.of(observation, config, said)
    return ({"gradient": gradients} if gradients else {}) | computed.tensor_simulators(
        observation, config, said
    )


def _of_role(parts: list[tuple[int, str, TensorStatistics, LayerEffect]]) -> dict[str, Any]:
    layers = dict.fromkeys(name for _, name, *_ in parts)
    steps = dict.fromkeys(step for step, *_ in parts)
    return {
        "all": _figures([(s, p) for *_, s, p in parts]),
        "layers": {name: _figures([(s, p) for _, n, s, p in parts if n == name]) for name in layers},
        "steps": {str(step): _plain([p for t, _, _, p in parts if t == step]) for step in steps},
        "exact": all(part.exact for *_, part in parts),
    }


def _figures(parts: list[tuple[TensorStatistics, LayerEffect]]) -> dict[str, Any]:
    exponents: dict[int, float] = {}
    for seen, _ in parts:
        for k, count in zip(seen.binades.tolist(), seen.column("count").tolist(), strict=True):
            exponents[k] = exponents.get(k, 0) + count
    shifts = [part.shift for _, part in parts]
    formats = dict.fromkeys(part.format for _, part in parts)
    return _plain([part for _, part in parts]) | {
        "format": ", ".join(formats),
        "shift": sum(shifts) / len(shifts),
        "exponents": {str(k): round(count) for k, count in sorted(exponents.items())},
    }


def _plain(parts: Iterable[LayerEffect]) -> dict[str, float | None]:
    """Return the figures of all parts together, with None in place of NaN."""
    return _nulled(figures(list(parts)))


def _nulled(found: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else float(np.float64(value)) for name, value in found.items()}
