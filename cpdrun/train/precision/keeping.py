"""How weights are kept from step to step: in float32; as float32 masters, rounded before every step; in their formats.

`roundings` has one entry a trainable parameter, in the order of the model's; None: it is float32 in any case.
"""

from collections.abc import Sequence
from typing import Any

import torch
from custom_fp.recipe.quantization_spec import QuantizationSpec
from torch import Tensor
from torch.optim import Optimizer

from cpdrun.train.precision.base import Parameters, kept_bytes
from cpdrun.train.precision.stepping import Stepping
from cpdrun.train.precision.weight_update import WeightUpdate


class Float32Weights:
    """Nothing is rounded and nothing copied."""

    def step(self, stepping: Stepping, optimizer: Optimizer, parameters: Parameters, scale: float) -> None:
        """The optimizer's step. scale: the loss scale of its gradients."""
        stepping.move_(optimizer, parameters, scale)

    def extra_bytes(self) -> int:
        """What is kept beside the weights themselves."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""


class MasterWeights(Float32Weights):
    """A float32 copy takes every step; the model has it rounded (arXiv 1710.03740, section 3.1)."""

    def __init__(self, parameters: Parameters, roundings: Sequence[QuantizationSpec | None]):
        self.roundings = roundings
        self.masters = [p.detach().clone() for p in parameters]
        round_(parameters, roundings)

    def step(self, stepping: Stepping, optimizer: Optimizer, parameters: Parameters, scale: float) -> None:
        for parameter, master in zip(parameters, self.masters, strict=True):
            parameter.copy_(master)
        stepping.move_(optimizer, parameters, scale)
        for parameter, master in zip(parameters, self.masters, strict=True):
            master.copy_(parameter)
        round_(parameters, self.roundings)

    def extra_bytes(self) -> int:
        return sum(kept_bytes(master, None) for master in self.masters)

    def state_dict(self) -> dict[str, Any]:
        return {"masters": self.masters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.masters = state["masters"]


class FormatWeights(Float32Weights):
    """The rounded weights are all there is; `weight_update.py` says what becomes of what a format cannot take."""

    def __init__(
        self,
        parameters: Parameters,
        roundings: Sequence[QuantizationSpec | None],
        rounding: str,
        kahan: bool,
        seed: int,
    ):
        self.in_format = [i for i, found in enumerate(roundings) if found]
        self.formats = [found.format for found in roundings if found]
        self.update = WeightUpdate(self.formats, rounding, kahan, seed)
        round_(parameters, roundings)

    def step(self, stepping: Stepping, optimizer: Optimizer, parameters: Parameters, scale: float) -> None:
        changes = stepping.changes(optimizer, parameters, scale)
        self.update.apply_([parameters[i] for i in self.in_format], [changes[i] for i in self.in_format])
        for i in set(range(len(parameters))) - set(self.in_format):
            parameters[i].copy_(parameters[i].double() + changes[i])

    def extra_bytes(self) -> int:
        return sum(
            kept_bytes(c, fmt) for c, fmt in zip(self.update.compensations, self.formats, strict=False)
        )

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.update.updates, "compensations": self.update.compensations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.update.updates, self.update.compensations = state["updates"], state["compensations"]


def round_(tensors: Sequence[Tensor], roundings: Sequence[QuantizationSpec | None]) -> None:
    """In place, each by its own."""
    with torch.no_grad():
        for tensor, rounding in zip(tensors, roundings, strict=True):
            if rounding is not None:
                tensor.copy_(rounding(tensor.detach()))
