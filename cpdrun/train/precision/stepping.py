"""How an optimizer's step rounds: each of SGD's operations (`cpdrun.optim.rounded_sgd`), or what it keeps, or nothing.

Parameters in `in_fp32` (by their place) take a float32 step whatever the formats.
"""

from collections.abc import Collection

import custom_fp
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from cpdrun.optim.rounded_sgd import rounding_to, sgd_update
from cpdrun.train.precision.base import Parameters, kept_bytes, state_of


class Stepping:
    """update: the format of every operation of SGD; order: theirs, of rounded_sgd; state: the format of momentum and
    the like after each step. None: float32."""

    in_fp32: Collection[int] = ()

    def __init__(self, update: str | None, order: str, state: str | None):
        self.update, self.order, self.state = update, order, state

    def check(self, optimizer: Optimizer) -> None:
        """ValueError where the operations of this optimizer are not known."""
        groups = optimizer.param_groups
        sgd = type(optimizer) is SGD and not any(g["dampening"] or g["maximize"] for g in groups)
        if self.update and not sgd:
            raise ValueError(
                f"precision.update={self.update} rounds every operation of SGD (optim=sgd) and knows no other "
                "optimizer; precision.update=fp32 rounds its state and the weights after each step"
            )

    def move_(self, optimizer: Optimizer, parameters: Parameters, scale: float) -> None:
        """Float32 weights take the step. scale: the loss scale of its gradients."""
        if not self.update:
            optimizer.step()
            return
        for p, change in zip(parameters, self._rounded_changes(optimizer, parameters, scale), strict=True):
            p.copy_(p.double() + change)

    def changes(self, optimizer: Optimizer, parameters: Parameters, scale: float) -> list[Tensor]:
        """What the step adds to each parameter, float64; the parameters stay."""
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
                p.grad,
                optimizer.state[p],
                settings[p],
                scale=scale,
                order=self.order,
                rounded=in_fp32 if i in self.in_fp32 else in_format,
            ).double()
            for i, p in enumerate(parameters)
        ]

    def round_state(self, optimizer: Optimizer, parameters: Parameters) -> None:
        for i, parameter in enumerate(parameters):
            for value in state_of(optimizer, parameter) if self.state and i not in self.in_fp32 else ():
                custom_fp.quantize(value, self.state, out=value)

    def state_bytes(self, optimizer: Optimizer, parameters: Parameters) -> int:
        formats = [fmt for fmt in (self.update, self.state) if fmt]
        narrowest = min(formats, key=lambda name: custom_fp.parse(name).bits, default=None)
        return sum(
            kept_bytes(value, None if i in self.in_fp32 else narrowest)
            for i, parameter in enumerate(parameters)
            for value in state_of(optimizer, parameter)
        )
