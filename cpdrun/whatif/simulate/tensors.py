"""What a run's precision or recipe would do to weights, updates, activations and output gradients.

A tensor is rounded by the first rule that means it (`custom_fp.recipe.rules`): of a weight the rule of how it is kept
(role parameter), else of what the forward product reads; of an activation what that product reads, else what a layer
reads; of an output gradient what the product for the input's gradient reads, else that for the weight's, else what
arrives at a layer. Accumulators and results of products are not seen.

Formats with scales, transforms and stochastic rounding are judged on the samples, in blocks of neighbours in memory;
one scale for a whole tensor is that of its largest value, which was seen, and so are delayed scales, as if they were
its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import custom_fp
import numpy as np
import torch
import torch.nn.functional as F
from custom_fp.formats.names import parse
from custom_fp.formats.scalar import Format
from custom_fp.layers.products import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from custom_fp.recipe.rounding import NEAREST, SIGNS, Rounding
from custom_fp.recipe.rules import Rules
from torch import Tensor

from cpdrun.train.instantiate import part as made
from cpdrun.train.precision.formats import Formats
from cpdrun.train.precision.loss_scale import DynamicLossScale, loss_scale_of
from cpdrun.whatif.collect.modules import SeenLayer
from cpdrun.whatif.collect.observation import Observation, Seen
from cpdrun.whatif.collect.samples import RUN
from cpdrun.whatif.simulate.gradients import loss_shift
from cpdrun.whatif.simulate.part import Judge, Part
from cpdrun.whatif.simulate.rounding_error import Tally, of_values, tally

_ASKED = {  # role and product of the rules that may mean a tensor, the first that says something
    "weight": (("parameter", None), ("weight", FORWARD)),
    "activation": (("input", FORWARD), ("activation", None)),
    "output_gradient": (
        ("output_gradient", INPUT_GRADIENT),
        ("output_gradient", WEIGHT_GRADIENT),
        ("error", None),
    ),
}
_SEED = 20  # of stochastic rounding on samples


def judges(observation: Observation, config: Mapping[str, Any], said: list[str]) -> dict[str, Judge]:
    """By role. Raises ValueError for a precision that does not fit together."""
    precision = made("precision", config["precision"])
    if not isinstance(precision, Formats):
        name = type(precision).__name__
        said.append(
            f"precision={name.lower()}: what it makes of weights, activations and gradients is not seen"
        )
        return {}
    gather = config["sync"].get("gather", "fp32")
    if gather != "fp32":
        said.append(f"weight: what sync.gather={gather} makes of them is not seen")
    layers = [SeenLayer.of(facts) for facts in observation.about["modules"]]
    precision.steps = observation.about["steps"]
    norms = [layer for layer in layers if precision.fp32_norms and layer.is_norm]
    rules = precision.rules(layers, norms)
    holders = {name: layer for layer in layers for name in layer.parameters}
    by_name = {name: layer for layer in layers if layer.part is None for name in layer.names}
    found: dict[str, Judge] = {
        role: _Operands(
            role,
            rules,
            holders if role == "weight" else by_name,
            loss_shift(observation.about, config) if role == "output_gradient" else 0,
        )
        for role in _ASKED
    }
    found["update"] = _Updates(observation, precision, rules, holders)
    said.extend(_unseen(observation, config, layers, rules))
    return found


def _unseen(
    observation: Observation, config: Mapping[str, Any], layers: Sequence[SeenLayer], rules: Rules
) -> Iterator[str]:
    """What of a step the rules reach and nobody looked at, or that is judged as something else."""
    kinds, delayed = set(), False
    for role in ("activation", "output_gradient"):
        watched = {name for of_step in observation.of(role).values() for name in of_step}
        for layer in layers:
            asked = [(r, p) for r, p in _ASKED[role] if layer.takes(r)]
            roundings = [x for r, p in asked if (x := rules.of(layer, r, p, 0)) is not None]
            delayed |= any(rounding.history for rounding in roundings)
            if roundings and layer.part is not None:
                kinds |= {"attention's products"} if observation.about["attends"] else set()
            elif roundings and not watched.intersection(layer.names):
                kinds.add(layer.kind)
    if kinds:
        yield f"what rules round in {', '.join(sorted(kinds))} is not seen"
    if delayed:
        yield "delayed scales are judged as scales of the same step"
    if isinstance(loss_scale_of(config["precision"].get("loss_scale", 1.0)), DynamicLossScale):
        yield "output_gradient: a dynamic loss scale is judged at its first value, 2^16"


@dataclass(frozen=True)
class _Operands:
    """weight, activation and output_gradient."""

    role: str
    rules: Rules
    layers: Mapping[str, SeenLayer]
    larger: int  # by this power of two than what was seen

    def __call__(self, step: int, seen: Mapping[str, Seen]) -> list[Part]:
        return [judged(s, self._rounding(name, step), self.larger) for name, s in seen.items()]

    def _rounding(self, name: str, step: int) -> Rounding | None:
        if (layer := self.layers.get(name)) is None:
            return None
        asked = ((r, p) for r, p in _ASKED[self.role] if layer.takes(r))
        found = (self.rules.of(layer, role, product, step) for role, product in asked)
        return next((rounding for rounding in found if rounding is not None), None)


@dataclass(frozen=True)
class _Updates:
    """What a step adds, in the format of the step's operations; and whether weights of a format without a float32 copy
    take it."""

    observation: Observation
    precision: Formats
    rules: Rules
    holders: Mapping[str, SeenLayer]

    def __call__(self, step: int, seen: Mapping[str, Seen]) -> list[Part]:
        fmt = self.precision.stepping.update
        weights = self.observation.of_steps[step].get("weight", {})
        parts = []
        for name, s in seen.items():
            part = judged(s, Rounding(fmt) if fmt else None)
            holder, lost = self.holders.get(name), (0.0, float(np.count_nonzero(s.samples["values"])))
            kept = None if holder is None else self.rules.of(holder, "parameter", None, step)
            if kept is not None and not self.precision.master_weights and name in weights:
                lost = self._lost(weights[name].samples["values"], s.samples["values"], kept.format)
            share = s.numel / max(1, s.samples["values"].size)
            parts.append(replace(part, lost=(lost[0] * share, lost[1] * share)))
        return parts

    def _lost(self, weight: np.ndarray, update: np.ndarray, fmt: str) -> tuple[float, float]:
        """How many updates but zeros leave the weight as it was, and of how many."""
        word = self.precision.update_rounding
        u = torch.from_numpy(np.array(update)).double()
        w = custom_fp.quantize(torch.from_numpy(np.array(weight)), fmt).double()
        if self.precision.kahan_weights:  # what waits in the compensation is not lost
            same = custom_fp.quantize(u, fmt) == 0
        else:
            seed = None if word == NEAREST else _SEED
            same = custom_fp.quantize(w + u, fmt, rounding=word, seed=seed).double() == w
        there = u != 0
        return float((same & there).sum()), float(there.sum())


def judged(seen: Seen, rounding: Rounding | None, larger: int = 0) -> Part:
    """By its table where that says all, else by its sample; of values 2^larger times those that were seen."""
    if rounding is None:
        return Part("fp32", 0, tally(seen, Format.parse("fp32")), True)
    fmt = parse(rounding.format)
    if isinstance(fmt, Format) and rounding.word == NEAREST and rounding.hadamard is None:
        shift = larger
        if rounding.aps and seen.largest:
            shift = fmt.emax - custom_fp.max_exponent(torch.tensor([seen.largest]))
        return Part(fmt.name, shift, tally(seen, fmt, shift), fmt.mantissa_bits <= 10 or fmt.is_fp32)
    x_n = torch.from_numpy(np.array(seen.samples["values"]).reshape(-1)) * 2.0**larger
    share = seen.numel / max(1, len(x_n))
    return Part(fmt.name, 0, _sampled(x_n, math.ldexp(seen.largest, larger), rounding).times(share), False)


def _sampled(x_n: Tensor, largest: float, rounding: Rounding) -> Tally:
    if rounding.hadamard is not None:
        if missing := -len(x_n) % rounding.hadamard:
            x_n = F.pad(x_n, (0, missing))
        x_n = custom_fp.hadamard(x_n, rounding.hadamard, seed=SIGNS, axis=-1)
    fmt = parse(rounding.format)
    if fmt.has_tiles:  # of neighbours in memory, 32 in a row
        x_n = F.pad(x_n, (0, -len(x_n) % RUN))
        rounded = custom_fp.quantize(x_n.view(-1, RUN), fmt, rounding=rounding.word, seed=_seed(rounding))
        return of_values(x_n.numpy(), rounded.numpy(), math.inf)
    # the tensor's largest value behind the others, for scales of a whole tensor; what is of blocks it has its own
    with_largest = torch.cat([x_n, torch.tensor([largest])])
    seed = _seed(rounding)
    if rounding.aps:
        shift = fmt.emax - (custom_fp.max_exponent(with_largest) or 0)
        scaled = with_largest.double() * 2.0**shift
        rounded = custom_fp.quantize(scaled, fmt, rounding=rounding.word, seed=seed).double() * 2.0**-shift
    else:
        rounded = custom_fp.quantize(with_largest, fmt, rounding=rounding.word, seed=seed)
    most = fmt.max if isinstance(fmt, Format) and not rounding.aps else math.inf
    return of_values(x_n.numpy(), rounded[:-1].numpy(), most)


def _seed(rounding: Rounding) -> int | None:
    return None if rounding.word == NEAREST else _SEED
