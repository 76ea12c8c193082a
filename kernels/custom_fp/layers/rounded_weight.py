"""Normalization layers whose affine weight is rounded each time it is used."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from custom_fp.layers.modules import Quantized
from custom_fp.layers.products import FORWARD, round_along


def is_normalization(module: nn.Module) -> bool:
    """Return whether a module has an affine weight like a normalization layer.

    This is true of any module without submodules that has a vector named `weight`, such as torch's norms and the
    RMSNorm classes of model libraries, and of torch's LayerNorm and RMSNorm over several dimensions.
    """
    if isinstance(module, torch.jit.ScriptModule) or list(module.children()):
        return False
    weight = module._parameters.get("weight")
    if weight is None or is_lazy(weight):
        return False
    return weight.dim() == 1 or isinstance(module, nn.LayerNorm | nn.RMSNorm)


class RoundedWeight(Quantized):
    """The rounding class of normalization layers.

    The layer uses the rounding of (weight, forward) and ignores all others. Blocks of formats with scales run along the
    last dimension of the weight. The gradient passes straight through to the weight.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's own forward with the rounded weight."""
        this: Any = self
        rounding = this.active_arithmetic.roundings.get(("weight", FORWARD))
        if rounding is None:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        # An attribute of the instance hides the parameter of the same name.
        this.__dict__["weight"] = round_along(rounding, this.weight, -1).to(this.weight.dtype)
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            del this.__dict__["weight"]
