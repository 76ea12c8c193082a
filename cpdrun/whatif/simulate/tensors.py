"""Simulate a precision or a recipe on weights, updates, activations, and output gradients.

If several rules (`custom_fp.recipe.rules`) round a tensor, only the first existing one is simulated:

    weight            1. the stored parameter (role parameter)
                      2. the weight operand of the forward product
    activation        1. the input operand of the forward product
                      2. the layer's inputs (role activation)
    output_gradient   1. the operand of the product that computes the input's gradient
                      2. the operand of the product that computes the weight's gradient
                      3. the gradient of the layer's output (role error)

Accumulators and the rounding of products' results are not simulated.

Formats with scales, Hadamard transforms, and stochastic rounding are applied to the samples, in blocks of neighbors. A
scale for the whole tensor follows from its largest observed value. Delayed scales are those of the same step.

Shapes: n sampled elements of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import custom_fp
import numpy as np
import torch
import torch.nn.functional as F
from custom_fp.formats.names import parse
from custom_fp.formats.scalar import Format
from custom_fp.layers.operations import SDPA
from custom_fp.layers.products import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from custom_fp.recipe.quantization_spec import NEAREST, SIGNS, QuantizationSpec
from custom_fp.recipe.rules import Rules
from torch import Tensor

from cpdrun.train.instantiate import part as made
from cpdrun.train.precision.base import DynamicLossScale, loss_scale_of
from cpdrun.train.precision.run_formats import Formats
from cpdrun.whatif.collect.modules import LayerDescription
from cpdrun.whatif.collect.observation import Observation, TensorStatistics
from cpdrun.whatif.collect.observer import RUN
from cpdrun.whatif.simulate.gradients import LayerEffect, RoleSimulator, loss_shift
from cpdrun.whatif.simulate.rounding_error import RoundingError, rounding_error_of, rounding_error_of_values

# The rules for each role as (rule's role, product), in the order above.
_RULES_OF_ROLE = {
    "weight": (("parameter", None), ("weight", FORWARD)),
    "activation": (("input", FORWARD), ("activation", None)),
    "output_gradient": (
        ("output_gradient", INPUT_GRADIENT),
        ("output_gradient", WEIGHT_GRADIENT),
        ("error", None),
    ),
}
_SEED = 20  # the seed for the stochastic rounding of samples


def tensor_simulators(
    observation: Observation, config: Mapping[str, Any], uncovered: list[str]
) -> dict[str, RoleSimulator]:
    """Return a simulator for each role other than gradient.

    `uncovered` receives a phrase for each part of the config that cannot be simulated.

    Raises:
        ValueError: The settings of the precision are not compatible.
    """
    precision = made("precision", config["precision"])
    if not isinstance(precision, Formats):
        name = type(precision).__name__
        uncovered.append(f"precision={name.lower()}: effects on weights, activations and gradients")
        return {}
    gather = config["sync"].get("gather", "fp32")
    if gather != "fp32":
        uncovered.append(f"weight: rounding by sync.gather={gather}")
    layers = [LayerDescription.of(facts) for facts in observation.about["modules"]]
    precision.steps = observation.about["steps"]
    norms = [layer for layer in layers if precision.fp32_norms and layer.is_norm]
    rules = precision.rules(layers, norms)
    holders = {name: layer for layer in layers for name in layer.parameters}
    by_name = {name: layer for layer in layers if layer.part is None for name in layer.names}
    found: dict[str, RoleSimulator] = {
        role: _OperandSimulator(
            role,
            rules,
            holders if role == "weight" else by_name,
            loss_shift(observation.about, config) if role == "output_gradient" else 0,
        )
        for role in _RULES_OF_ROLE
    }
    found["update"] = _UpdateSimulator(observation, precision, rules, holders)
    uncovered.extend(_uncovered(observation, config, layers, rules))
    return found


def _uncovered(
    observation: Observation, config: Mapping[str, Any], layers: Sequence[LayerDescription], rules: Rules
) -> Iterator[str]:
    """Yield a phrase for each kind of rounding that is not simulated faithfully."""
    kinds, delayed = set(), False
    for role in ("activation", "output_gradient"):
        watched = {name for of_step in observation.of(role).values() for name in of_step}
        for layer in layers:
            asked = [(r, p) for r, p in _RULES_OF_ROLE[role] if layer.takes(r)]
            roundings = [x for r, p in asked if (x := rules.rounding_for(layer, r, p, 0)) is not None]
            delayed |= any(rounding.history for rounding in roundings)
            if roundings and layer.kind == SDPA:
                kinds |= {"attention"} if observation.about["attends"] else set()
            elif roundings and not watched.intersection(layer.names):
                kinds.add(layer.kind)
    if kinds:
        yield f"rounding in {', '.join(sorted(kinds))}"
    if delayed:
        yield "delayed scales, which are simulated as scales of the same step"
    if isinstance(loss_scale_of(config["precision"].get("loss_scale", 1.0)), DynamicLossScale):
        yield "output_gradient: changes of the dynamic loss scale, which is simulated at its first value, 2^16"


@dataclass(frozen=True)
class _OperandSimulator:
    """Simulate the rounding of weights, activations, or output gradients.

    Weights have the names of parameters; other tensors have those of layers. Observed values are multiplied by
    2^larger, because the config may have another loss scale.
    """

    role: str
    rules: Rules
    layers: Mapping[str, LayerDescription]
    larger: int

    def __call__(self, step: int, statistics: Mapping[str, TensorStatistics]) -> list[LayerEffect]:
        return [
            simulate_rounding(s, self._rounding(name, step), self.larger) for name, s in statistics.items()
        ]

    def _rounding(self, name: str, step: int) -> QuantizationSpec | None:
        if (layer := self.layers.get(name)) is None:
            return None
        asked = ((r, p) for r, p in _RULES_OF_ROLE[self.role] if layer.takes(r))
        found = (self.rules.rounding_for(layer, role, product, step) for role, product in asked)
        return next((rounding for rounding in found if rounding is not None), None)


@dataclass(frozen=True)
class _UpdateSimulator:
    """Simulate the rounding of updates, and count lost updates.

    Updates are rounded to the format of the optimizer's operations. They can be lost if weights are stored in a
    narrower format without a float32 master copy. `holders` maps a parameter's name to its layer.
    """

    observation: Observation
    precision: Formats
    rules: Rules
    holders: Mapping[str, LayerDescription]

    def __call__(self, step: int, statistics: Mapping[str, TensorStatistics]) -> list[LayerEffect]:
        fmt = self.precision.optimizer_rounding.update
        weights = self.observation.by_step[step].get("weight", {})
        parts = []
        for name, s in statistics.items():
            part = simulate_rounding(s, QuantizationSpec(fmt) if fmt else None)
            holder, lost = self.holders.get(name), (0.0, float(np.count_nonzero(s.samples["values"])))
            kept = None if holder is None else self.rules.rounding_for(holder, "parameter", None, step)
            if kept is not None and not self.precision.master_weights and name in weights:
                lost = self._lost(weights[name].samples["values"], s.samples["values"], kept.format)
            share = s.numel / max(1, s.samples["values"].size)
            parts.append(replace(part, lost=(lost[0] * share, lost[1] * share)))
        return parts

    def _lost(self, weight: np.ndarray, update: np.ndarray, fmt: str) -> tuple[float, float]:
        """Return the number of lost updates and of nonzero updates.

        A nonzero update is lost if it leaves the weight, stored in `fmt`, unchanged.
        """
        word = self.precision.update_rounding
        u = torch.from_numpy(np.array(update)).double()
        w = custom_fp.quantize(torch.from_numpy(np.array(weight)), fmt).double()
        if self.precision.kahan_weights:  # the compensation term keeps updates
            same = custom_fp.quantize(u, fmt) == 0
        else:
            seed = None if word == NEAREST else _SEED
            same = custom_fp.quantize(w + u, fmt, rounding=word, seed=seed).double() == w
        there = u != 0
        return float((same & there).sum()), float(there.sum())


def simulate_rounding(
    statistics: TensorStatistics, rounding: QuantizationSpec | None, larger: int = 0
) -> LayerEffect:
    """Simulate the rounding of one observed tensor.

    For scalar formats that round to nearest without a Hadamard transform, the simulation uses the recorded table of the
    tensor. Otherwise, it uses the recorded sample of values. It ignores the rounding of stored activations (`cached`).

    Args:
        statistics: The recorded statistics of the tensor.
        rounding: How the tensor is rounded. None leaves it in float32.
        larger: The tensor is multiplied by 2^larger before it is rounded, unless APS chooses the factor.
    """
    if rounding is None:
        return LayerEffect("fp32", 0, rounding_error_of(statistics, Format.parse("fp32")), True)
    fmt = parse(rounding.format)
    if isinstance(fmt, Format) and rounding.rounding_mode == NEAREST and rounding.hadamard is None:
        shift = larger
        if rounding.aps and statistics.largest:
            shift = fmt.emax - (custom_fp.max_exponent(torch.tensor([statistics.largest])) or 0)
        return LayerEffect(
            fmt.name, shift, rounding_error_of(statistics, fmt, shift), fmt.mantissa_bits <= 10 or fmt.is_fp32
        )
    x_n = torch.from_numpy(np.array(statistics.samples["values"]).reshape(-1)) * 2.0**larger
    share = statistics.numel / max(1, len(x_n))
    return LayerEffect(
        fmt.name, 0, _sampled(x_n, math.ldexp(statistics.largest, larger), rounding).times(share), False
    )


def _sampled(x_n: Tensor, largest: float, rounding: QuantizationSpec) -> RoundingError:
    if rounding.hadamard is not None:
        if missing := -len(x_n) % rounding.hadamard:
            x_n = F.pad(x_n, (0, missing))
        x_n = custom_fp.hadamard(x_n, rounding.hadamard, seed=SIGNS, axis=-1)
    fmt = parse(rounding.format)
    if fmt.has_tiles:  # each row holds 32 (RUN) adjacent values
        x_n = F.pad(x_n, (0, -len(x_n) % RUN))
        rounded = custom_fp.quantize(
            x_n.view(-1, RUN), fmt, rounding=rounding.rounding_mode, seed=_seed(rounding)
        )
        return rounding_error_of_values(x_n.numpy(), rounded.numpy(), math.inf)
    # A scale for the whole tensor depends on its largest value, so that value is appended. If the format has blocks and
    # the sample fills whole blocks, the appended value has a block of its own.
    with_largest = torch.cat([x_n, torch.tensor([largest])])
    seed = _seed(rounding)
    if rounding.aps:
        shift = cast(Format, fmt).emax - (custom_fp.max_exponent(with_largest) or 0)
        scaled = with_largest.double() * 2.0**shift
        rounded = (
            custom_fp.quantize(scaled, fmt, rounding=rounding.rounding_mode, seed=seed).double() * 2.0**-shift
        )
    else:
        rounded = custom_fp.quantize(with_largest, fmt, rounding=rounding.rounding_mode, seed=seed)
    most = fmt.max if isinstance(fmt, Format) and not rounding.aps else math.inf
    return rounding_error_of_values(x_n.numpy(), rounded[:-1].numpy(), most)


def _seed(rounding: QuantizationSpec) -> int | None:
    return None if rounding.rounding_mode == NEAREST else _SEED
