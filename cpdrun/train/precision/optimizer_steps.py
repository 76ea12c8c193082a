"""Optimizer steps in low precision: how updates, the optimizer's state and the weights are rounded.

`OptimizerRounding` rounds each operation of SGD (`cpdrun.optim.rounded_sgd`), or the optimizer's state after each step.

Weights are stored from step to step in one of three ways: `Float32Weights`; `MasterWeights`, float32 masters that are
rounded before every step; `FormatWeights`, in their formats without a float32 copy. `WeightUpdate` defines what happens
to the bits of an update that a format cannot represent:

    nearest_even   w = Q(w - u). An update below half a unit of w is lost (Gupta et al., arXiv 1502.02551, section 3).
    stochastic     Rounds up or down with probability by distance (the same paper). Nothing is lost on average, but
                   noise is added. stochastic_N, with N random bits, loses an update below 2^-N units of w
                   (`custom_fp.rounding`). Random numbers depend on (seed, update, parameter, element), so the bits are
                   the same for any split of the workers and after a resume.
    kahan          y = Q(-u - c); t = Q(w + y); c = Q(Q(t - w) - y); w = t. The rounding error is stored in c, in the
                   same format, until it amounts to a unit (Kahan, CACM 1965; for weights: Zamirai et al., arXiv
                   2010.06192). With stochastic rounding, only t is rounded stochastically.

w - u is exact, as far as float64 represents it, before it is rounded once.

In this module, `roundings` has one entry per trainable parameter, in the order of the model. None stands for float32.
"""

from collections.abc import Collection, Sequence
from typing import Any

import custom_fp
import torch
from custom_fp.recipe.quantization_spec import QuantizationSpec
from torch import Tensor
from torch.optim import SGD, Optimizer

from cpdrun.optim.rounded_sgd import rounding_to, sgd_update
from cpdrun.train.precision.base import Parameters, get_gradient, optimizer_state, storage_bytes
from cpdrun.train.seeds import derived_seed


class OptimizerRounding:
    """The rounding of an optimizer's operations and of its state.

    Args:
        update: The format of every operation of SGD, or None for float32.
        order: The order of these operations, one of `rounded_sgd.ORDERS`.
        state: The format of the state, such as momentum, after each step, or None for float32.

    Attributes:
        in_fp32: The indices of the parameters whose steps are always computed in float32.
    """

    in_fp32: Collection[int] = ()

    def __init__(self, update: str | None, order: str, state: str | None):
        self.update, self.order, self.state = update, order, state

    def check(self, optimizer: Optimizer) -> None:
        """Raise ValueError if every operation must be rounded, but this optimizer is not plain SGD."""
        groups = optimizer.param_groups
        is_sgd = type(optimizer) is SGD and not any(g["dampening"] or g["maximize"] for g in groups)
        if self.update and not is_sgd:
            raise ValueError(
                f"precision.update={self.update} rounds every operation of SGD (optim=sgd) and supports no other "
                "optimizer; precision.update=fp32 rounds its state and the weights after each step"
            )

    def step_(self, optimizer: Optimizer, parameters: Parameters, scale: float) -> None:
        """Update float32 weights in place. `scale` is the loss scale of the gradients."""
        if not self.update:
            optimizer.step()
            return
        for p, change in zip(parameters, self._rounded_changes(optimizer, parameters, scale), strict=True):
            p.copy_(p.double() + change)

    def changes(self, optimizer: Optimizer, parameters: Parameters, scale: float) -> list[Tensor]:
        """Return the change of each parameter in this step, in float64, without changing the parameters."""
        if self.update:
            return self._rounded_changes(optimizer, parameters, scale)
        before = [p.detach().clone() for p in parameters]
        optimizer.step()
        changes = [p.double() - old.double() for p, old in zip(parameters, before, strict=True)]
        torch._foreach_copy_(list(parameters), before)
        return changes

    def _rounded_changes(self, optimizer: Optimizer, parameters: Parameters, scale: float) -> list[Tensor]:
        settings = {p: group for group in optimizer.param_groups for p in group["params"]}
        in_format, in_fp32 = rounding_to(self.update), rounding_to(None)
        return [
            -sgd_update(
                p,
                get_gradient(p),
                optimizer.state[p],
                settings[p],
                scale=scale,
                order=self.order,
                rounded=in_fp32 if i in self.in_fp32 else in_format,
            ).double()
            for i, p in enumerate(parameters)
        ]

    def round_state(self, optimizer: Optimizer, parameters: Parameters) -> None:
        """Round the optimizer's state in place."""
        if self.state is None:
            return
        for i, parameter in enumerate(parameters):
            for value in optimizer_state(optimizer, parameter) if i not in self.in_fp32 else ():
                custom_fp.quantize(value, self.state, out=value)

    def state_bytes(self, optimizer: Optimizer, parameters: Parameters) -> int:
        """Return the bytes of the optimizer's state."""
        formats = [fmt for fmt in (self.update, self.state) if fmt]
        narrowest = min(formats, key=lambda name: custom_fp.parse(name).bits, default=None)
        return sum(
            storage_bytes(value, None if i in self.in_fp32 else narrowest)
            for i, parameter in enumerate(parameters)
            for value in optimizer_state(optimizer, parameter)
        )


class Float32Weights:
    """Float32 weights, which are neither rounded nor copied."""

    def step(
        self, rounding: OptimizerRounding, optimizer: Optimizer, parameters: Parameters, scale: float
    ) -> None:
        """Take an optimizer step. `scale` is the loss scale of the gradients."""
        rounding.step_(optimizer, parameters, scale)

    def extra_bytes(self) -> int:
        """Return the bytes stored in addition to the weights."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""


class MasterWeights(Float32Weights):
    """Weights with a float32 master copy (arXiv 1710.03740, section 3.1).

    The optimizer updates the masters, and the model uses the rounded masters.
    """

    def __init__(self, parameters: Parameters, roundings: Sequence[QuantizationSpec | None]):
        self.roundings = roundings
        self.masters = [p.detach().clone() for p in parameters]
        round_(parameters, roundings)

    def step(
        self, rounding: OptimizerRounding, optimizer: Optimizer, parameters: Parameters, scale: float
    ) -> None:
        """Take an optimizer step on the masters, then round the weights."""
        for parameter, master in zip(parameters, self.masters, strict=True):
            parameter.copy_(master)
        rounding.step_(optimizer, parameters, scale)
        for parameter, master in zip(parameters, self.masters, strict=True):
            master.copy_(parameter)
        round_(parameters, self.roundings)

    def extra_bytes(self) -> int:
        """Return the bytes of the masters."""
        return sum(storage_bytes(master, None) for master in self.masters)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"masters": self.masters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.masters = state["masters"]


class FormatWeights(Float32Weights):
    """Weights in their formats, without a float32 copy."""

    def __init__(
        self,
        parameters: Parameters,
        roundings: Sequence[QuantizationSpec | None],
        update_rounding: str,
        kahan: bool,
        seed: int,
    ):
        self.in_format = [i for i, rounding in enumerate(roundings) if rounding]
        self.formats = [rounding.format for rounding in roundings if rounding]
        self.update = WeightUpdate(self.formats, update_rounding, kahan, seed)
        round_(parameters, roundings)

    def step(
        self, rounding: OptimizerRounding, optimizer: Optimizer, parameters: Parameters, scale: float
    ) -> None:
        """Take an optimizer step and round its result."""
        changes = rounding.changes(optimizer, parameters, scale)
        self.update.apply_([parameters[i] for i in self.in_format], [changes[i] for i in self.in_format])
        for i in set(range(len(parameters))) - set(self.in_format):
            parameters[i].copy_(parameters[i].double() + changes[i])

    def extra_bytes(self) -> int:
        """Return the number of bytes of the Kahan compensations."""
        return sum(
            storage_bytes(c, fmt) for c, fmt in zip(self.update.compensations, self.formats, strict=False)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"updates": self.update.updates, "compensations": self.update.compensations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.update.updates, self.update.compensations = state["updates"], state["compensations"]


class WeightUpdate:
    """Adds updates to weights that are stored in their formats.

    Args:
        formats: The format of each weight tensor.
        rounding: How results are rounded.
        kahan: Whether each weight tensor has a compensation in the same format.
        seed: The key of stochastic rounding.

    Attributes:
        updates: The number of calls of `apply_`.
    """

    def __init__(self, formats: Sequence[str], rounding: str, kahan: bool, seed: int):
        self.formats, self.rounding, self.kahan, self.seed = formats, rounding, kahan, seed
        self.updates = 0
        self.compensations: list[Tensor] = []

    def apply_(self, weights: Sequence[Tensor], changes: Sequence[Tensor]) -> None:
        """Add changes (float64) to weights (float32 values of their formats), in place."""
        if self.kahan and not self.compensations:
            self.compensations = [torch.zeros_like(w) for w in weights]
        for p, (w, change) in enumerate(zip(weights, changes, strict=True)):
            if self.kahan:
                self._add_compensated_(w, change, self.compensations[p], p)
            else:
                w.copy_(self._round(w.double() + change, p))
        self.updates += 1

    def _add_compensated_(self, w: Tensor, change: Tensor, c: Tensor, p: int) -> None:
        y = self._round_to_nearest(change - c.double(), p)
        t = self._round(w.double() + y.double(), p)
        added = self._round_to_nearest(t.double() - w.double(), p)
        c.copy_(self._round_to_nearest(added.double() - y.double(), p))
        c.masked_fill_(~torch.isfinite(t), 0.0)
        w.copy_(t)

    def _round_to_nearest(self, exact: Tensor, p: int) -> Tensor:
        return custom_fp.quantize(exact, self.formats[p])

    def _round(self, exact: Tensor, p: int) -> Tensor:
        if self.rounding == "nearest_even":
            return self._round_to_nearest(exact, p)
        seed = derived_seed("update", self.seed, self.updates, p)
        return custom_fp.quantize(exact, self.formats[p], rounding=self.rounding, seed=seed)


def round_(tensors: Sequence[Tensor], roundings: Sequence[QuantizationSpec | None]) -> None:
    """Round each tensor in place with its own rounding."""
    with torch.no_grad():
        for tensor, rounding in zip(tensors, roundings, strict=True):
            if rounding is not None:
                tensor.copy_(rounding(tensor.detach()))
