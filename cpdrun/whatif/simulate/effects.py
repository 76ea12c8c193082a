"""What a run's config would do to the tensors that another run showed: by role, by layer, by step and over all.

    underflow     share of the finite values but zeros that become 0
    saturation    share of them beyond the format's largest value
    snr_db        10 log10(sum x^2 / sum error^2), at most 200, where nothing is lost; those beyond count as the
                    largest value
    bias          mean error of the magnitudes over their mean: negative where they shrink
    cosine        of the tensor and what becomes of it; of gradients that of the workers' sum with the exact sum
    sum_error     ||s - S|| / ||S|| of the workers' sum s with the exact sum S
    growth        sum_error over that of the first addition, of workers 0 and 1 alone
    steps_cosine  of gradients, all layers together: the cosine of the sums of all steps that were seen, added up, with
                    the exact ones; with error feedback it is carried from each to the next (`following.py`); `steps`
    update_lost   share of what a step adds, zeros left out, that leaves a weight as it was

The first five are exact where a format has no scales and rounding is to nearest, over every element that was seen, in
the whole of it (`tally.py`); else, and the others always, they are of samples, and `exact` is false. Null: there is
nothing to say (a tensor of zeros, a sum that is not finite).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpdrun.whatif.collect.observation import Observation, Seen
from cpdrun.whatif.simulate import tensors as computed
from cpdrun.whatif.simulate.gradients import Gradients
from cpdrun.whatif.simulate.part import Judge, Part, figures

FIGURES = ("underflow", "saturation", "snr_db", "bias", "cosine", "sum_error", "growth", "update_lost")


@dataclass
class Effects:
    """roles[role]: {"all": figures, "layers": {name: figures}, "steps": {step: figures}, "exact": whether}.

    Figures are those of `FIGURES` that a role has; of layers and of all also `exponents`, by floor(log2 |x|) how many
    values, `shift`, the mean of the shifts that they are multiplied by 2^shift with, and `format`. said: sentences on
    what was not seen, or is known in another way than it is asked for.
    """

    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"role": self.roles, "said": self.said}


def effects(observation: Observation, config: Mapping[str, Any]) -> Effects:
    """What a resolved config would do. Raises ValueError where its parts do not fit together."""
    found = Effects(said=list(observation.unseen))
    for role, judge in judges_of(observation, config, found.said).items():
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


def judges_of(observation: Observation, config: Mapping[str, Any], said: list[str]) -> dict[str, Judge]:
    """By role; sentences on what cannot be judged go into `said`. Raises ValueError for a config that does not fit
    together."""
    gradients = Gradients.of(observation, config, said)
    return ({"gradient": gradients} if gradients else {}) | computed.judges(observation, config, said)


def _of_role(parts: list[tuple[int, str, Seen, Part]]) -> dict[str, Any]:
    layers = dict.fromkeys(name for _, name, *_ in parts)
    steps = dict.fromkeys(step for step, *_ in parts)
    return {
        "all": _figures([(s, p) for *_, s, p in parts]),
        "layers": {name: _figures([(s, p) for _, n, s, p in parts if n == name]) for name in layers},
        "steps": {str(step): _plain([p for t, _, _, p in parts if t == step]) for step in steps},
        "exact": all(part.exact for *_, part in parts),
    }


def _figures(parts: list[tuple[Seen, Part]]) -> dict[str, Any]:
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


def _plain(parts: Iterable[Part]) -> dict[str, float | None]:
    """Of the sums of all: NaN becomes None."""
    return _nulled(figures(list(parts)))


def _nulled(found: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else float(np.float64(value)) for name, value in found.items()}
