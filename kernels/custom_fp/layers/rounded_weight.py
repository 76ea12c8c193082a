"""Normalization layers whose affine weight is rounded each time it is used."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from custom_fp.layers.modules import Quantized
from custom_fp.layers.products import FORWARD, round_along


def is_normalization(module: nn.Module) -> bool:
    """Return whether a module has an elementwise affine weight, as normalization layers do.

    This is true of any module without submodules whose `weight` is a vector, such as torch's norms and the RMSNorm
    classes of model libraries. It is also true of torch's LayerNorm and RMSNorm over several dimensions.
    """
    if isinstance(module, torch.jit.ScriptModule) or list(module.children()):
        return False
    weight = module._parameters.get("weight")
    if weight is None or is_lazy(weight):
        return False
    return weight.dim() == 1 or isinstance(module, nn.LayerNorm | nn.RMSNorm)


class RoundedWeight(Quantized):
    """The rounding class of normalization layers.

    Only one part of the arithmetic has an effect: the rounding of the weight in the forward pass. If a format has
    scales, its blocks run along the last dimension of the weight. The gradient passes straight through to the unrounded
    weight.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's own forward with the rounded weight."""
        this: Any = self
        rounding = this.active_arithmetic.roundings.get(("weight", FORWARD))
        if rounding is None:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        # An instance attribute takes precedence over the parameter of the same name.
        this.__dict__["weight"] = round_along(rounding, this.weight, -1).to(this.weight.dtype)
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            del this.__dict__["weight"]
