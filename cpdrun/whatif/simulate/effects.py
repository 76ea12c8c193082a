"""Simulate configurations on the tensors that a run observed.

    python -m cpdrun.whatif.simulate.effects RUN_DIR CONFIGS.json OUT.json

CONFIGS.json contains {name: resolved config}. The program writes {name: effects} to OUT.json. If a config is not
compatible with the run, its effects are {"error": message}. The effects contain these statistics, which the code calls
figures:

    underflow     The share of the nonzero finite values that are rounded to 0.
    saturation    The share of the nonzero finite values that exceed the format's largest value.
    snr_db        The signal-to-noise ratio in decibels, 10 log10(sum x^2 / sum error^2). It is limited to 200, which
                  means that nothing is lost. Values beyond the format's largest value count as if they were replaced by
                  that value.
    bias          The mean error of the magnitudes divided by their mean. It is negative if magnitudes shrink.
    cosine        For gradients, the cosine between the computed and the exact sum over workers. For other roles, the
                  cosine between the tensor and the rounded tensor.
    sum_error     ||s - S|| / ||S||, where s is the computed sum over workers and S is the exact sum.
    growth        sum_error divided by the relative error of the first addition, which adds workers 0 and 1.
    steps_cosine  For gradients, the cosine between the computed and the exact sum over all workers, observed steps, and
                  layers. With error feedback, the workers' residuals are carried from each observed step to the next
                  (`worker_sums.MultiStepSums`).
    steps         The number of steps that steps_cosine covers.
    update_lost   The share of the nonzero updates that leave the weight unchanged.

underflow, saturation, snr_db, bias, and the cosine of roles other than gradient are exact over all observed elements if
the format has no scales and is rounded to nearest. `rounding_error.py` describes the limits for formats with more than
10 mantissa bits. Otherwise, these statistics are approximations or computed from samples, and `exact` is false. All
other statistics are computed from samples. An undefined statistic is null, for example if a tensor is zero or a sum is
not finite.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cpdrun.parent import die_with
from cpdrun.record import RunDir, read_json, write_json
from cpdrun.train.instantiate import BuildError
from cpdrun.whatif.collect.observation import Observation, TensorStatistics
from cpdrun.whatif.simulate.gradients import GradientSimulator, LayerEffect, RoleSimulator, figures
from cpdrun.whatif.simulate.tensors import tensor_simulators

MAX_CONFIGS_BYTES = 1 << 30


@dataclass
class Effects:
    """The effects of one configuration.

    Attributes:
        roles: {role: {"all": figures, "layers": {layer: figures}, "steps": {step: figures}, "exact": bool}}. `figures`
            is a dictionary of statistics (see the module). In "all" and "layers", it also has `format`, `shift` (the
            mean exponent of the scale 2^shift before rounding), and `exponents` (the number of values for each
            floor(log2 |x|)).
        uncovered: A phrase for each part of the configuration that was not observed or not simulated faithfully.
    """

    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    uncovered: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"role": self.roles, "uncovered": self.uncovered}


def effects(observation: Observation, config: Mapping[str, Any]) -> Effects:
    """Simulate a resolved config on observed tensors.

    Raises:
        ValueError: The settings of the config are not compatible.
    """
    found = Effects(uncovered=list(observation.unobserved))
    gradients = GradientSimulator.of(observation, config, found.uncovered)
    simulators: dict[str, RoleSimulator] = {} if gradients is None else {"gradient": gradients}
    simulators |= tensor_simulators(observation, config, found.uncovered)
    for role, simulate in simulators.items():
        parts = [
            (step, name, statistics, part)
            for step, layers in observation.of(role).items()
            for (name, statistics), part in zip(layers.items(), simulate(step, layers), strict=True)
        ]
        if parts:
            found.roles[role] = _role_figures(parts)
    if gradients is not None and "gradient" in found.roles:
        found.roles["gradient"]["all"] |= _nulled(gradients.multi_step.figures())
    return found


def _role_figures(parts: list[tuple[int, str, TensorStatistics, LayerEffect]]) -> dict[str, Any]:
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
    for statistics, _ in parts:
        for k, count in zip(statistics.binades.tolist(), statistics.column("count").tolist(), strict=True):
            exponents[k] = exponents.get(k, 0) + count
    shifts = [part.shift for _, part in parts]
    formats = dict.fromkeys(part.format for _, part in parts)
    return _plain([part for _, part in parts]) | {
        "format": ", ".join(formats),
        "shift": sum(shifts) / len(shifts),
        "exponents": {str(k): round(count) for k, count in sorted(exponents.items())},
    }


def _plain(parts: Iterable[LayerEffect]) -> dict[str, float | None]:
    """Return the statistics over all parts together. Undefined statistics are None."""
    return _nulled(figures(list(parts)))


def _nulled(found: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else float(np.float64(value)) for name, value in found.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cpdrun.whatif.simulate.effects", description=__doc__.splitlines()[0]
    )
    for name in ("run_dir", "configs", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument(
        "--parent", type=int, help="the PID of the parent; this process ends when its parent ends"
    )
    given = parser.parse_args(argv)
    if given.parent is not None:
        die_with(given.parent)
    run = RunDir(given.run_dir)
    configs = read_json(given.configs, MAX_CONFIGS_BYTES)
    if not isinstance(configs, dict):
        return _refused(f"{given.configs} must be a JSON object of resolved configs by name")
    try:
        observation = Observation.load(run.observed)
    except FileNotFoundError:
        return _refused(f"{run.path} was not observed. Train it with observe=16")
    except (OSError, ValueError) as error:
        return _refused(str(error))
    found = {}
    for name, config in configs.items():
        try:
            found[name] = effects(observation, config).as_json()
        except (ValueError, BuildError) as error:  # the other configs may be valid
            found[name] = {"error": str(error)}
    write_json(given.out, found)
    return 0


def _refused(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
