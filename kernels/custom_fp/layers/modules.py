"""Layers whose matrix products use an emulated accumulator, forward and backward, and a layer that rounds activations.

A layer computes the same as the torch.nn layer with the same arguments, except that these arguments change it:

    operands               The format to which the input and the weight are rounded first. The gradient passes straight
                           through.
    gradients              The format to which the gradient of the output is rounded before the backward products.
    accumulator            The accumulator of the forward product. It is either a format, to which every product and
                           partial sum is rounded, or an `Accumulator` (see `custom_fp.matmul`).
    backward_accumulator   The accumulator of both products of the backward pass. The default is `accumulator`.

If an argument is None, that part stays in float32. The bias is added in float32, before the result is rounded. If
windows of a convolution overlap, the parts of the input's gradient are added in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from custom_fp.accumulator import Accumulator
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.layers.attachment import attach_
from custom_fp.layers.convolution import Convolution
from custom_fp.layers.products import Arithmetic, Linear, Nearest, Sums, round_gradient
from custom_fp.ops import quantize


class Quantizer(nn.Module):
    """A layer that rounds activations and their gradients to the nearest value of a format, ties to even.

    Args:
        forward: The format of the activations, or None to leave them unchanged.
        backward: The format of the gradients, or None to leave them unchanged.
    """

    def __init__(
        self, forward: NumberFormat | str | None = None, backward: NumberFormat | str | None = None
    ) -> None:
        super().__init__()
        self.forward_format, self.backward_format = forward and parse(forward), backward and parse(backward)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rounded activations as float32, or x itself if `forward` is None."""
        if self.backward_format is not None:
            x = round_gradient(x, Nearest(self.backward_format))
        return x if self.forward_format is None else quantize(x, self.forward_format)

    def extra_repr(self) -> str:
        """Return the formats."""
        return f"forward={self.forward_format}, backward={self.backward_format}"


class Quantized:
    """The base class of layers with rounded products. It manages their arithmetic and can convert existing layers.

    Args:
        *args: The arguments of the torch.nn layer.
        accumulator: See the docstring of this module.
        backward_accumulator: See the docstring of this module.
        kahan: Use Kahan summation in all products.
        operands: See the docstring of this module.
        gradients: See the docstring of this module.
        **kwargs: The keyword arguments of the torch.nn layer.
    """

    arithmetic: Arithmetic
    training: bool

    def __init__(
        self,
        *args: Any,
        accumulator: Accumulator | Format | str | None = None,
        backward_accumulator: Accumulator | Format | str | None = None,
        kahan: bool = False,
        operands: NumberFormat | str | None = None,
        gradients: NumberFormat | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.arithmetic = Arithmetic.of(accumulator, backward_accumulator, kahan, operands, gradients)

    @classmethod
    def from_module(cls, module: nn.Module, arithmetic: Arithmetic) -> Any:
        """Return a layer with the parameters (the same objects), hooks and settings of a torch.nn layer."""
        layer = cls.__new__(cls)
        layer.__dict__.update(module.__dict__)
        layer.arithmetic = arithmetic
        return layer

    @classmethod
    def attach_to(cls, module: nn.Module, arithmetic: Arithmetic) -> None:
        """Attach an arithmetic to a torch.nn layer, which stays the same object (see attachment.py)."""
        attach_(module, cls)
        module.__dict__["arithmetic"] = arithmetic

    @property
    def active_arithmetic(self) -> Arithmetic:
        """The arithmetic for the layer's mode. In evaluation mode, no rounding is stochastic."""
        return self.arithmetic if self.training else self.arithmetic.evaluated

    def extra_repr(self) -> str:
        """Return the layer's settings and its arithmetic."""
        return f"{super().extra_repr()}, {self.arithmetic}"  # type: ignore[misc]


class QuantLinear(Quantized, nn.Linear):
    """torch.nn.Linear with rounded products. The docstring of this module explains the keyword arguments."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias in the dtype of x."""
        return project(self.active_arithmetic, x, self.weight, self.bias)


def project(arithmetic: Arithmetic, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute torch.nn.functional.linear with the given arithmetic."""
    if not arithmetic:
        return F.linear(x, weight, bias)
    if arithmetic.accumulators:
        rows = arithmetic.multiply(Sums(arithmetic), x, weight, _rows, torch.t, bias)
        result = rows.view(*x.shape[:-1], len(weight))
    else:
        result = arithmetic.multiply(Linear(), x, weight, bias=bias)
    return result.to(x.dtype)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


class _QuantConv(Quantized, _ConvNd):
    """A convolution with rounded products."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution in the dtype of x."""
        if not self.arithmetic:
            return super().forward(x)
        return Convolution.of_layer(self)(self.active_arithmetic, x, self.weight, self.bias)


class QuantConv1d(_QuantConv, nn.Conv1d):
    """torch.nn.Conv1d with rounded products. The docstring of this module explains the keyword arguments."""


class QuantConv2d(_QuantConv, nn.Conv2d):
    """torch.nn.Conv2d with rounded products. The docstring of this module explains the keyword arguments."""


class QuantConv3d(_QuantConv, nn.Conv3d):
    """torch.nn.Conv3d with rounded products. The docstring of this module explains the keyword arguments."""


LAYERS: dict[type[nn.Module], type[Quantized]] = {
    nn.Linear: QuantLinear,
    nn.Conv1d: QuantConv1d,
    nn.Conv2d: QuantConv2d,
    nn.Conv3d: QuantConv3d,
}


def quantize_model(model: nn.Module, *, skip: tuple[str, ...] = (), **arithmetic: Any) -> nn.Module:
    """Return a copy of a model whose Linear and Conv1d/2d/3d layers use an emulated accumulator.

    Layers of subclasses (transposed convolutions, or a user's own) are not changed, and neither are products outside of
    layers, such as those of attention.

    Args:
        model: Any module.
        skip: The names of layers to leave unchanged, with * and ? as wildcards ("head", "layers.0.*").
        **arithmetic: The keyword arguments of the layers: accumulator, backward_accumulator, kahan, operands and
            gradients.

    Raises:
        ValueError: No layer would be replaced, or a pattern of `skip` matches no layer.
    """
    return quantize_model_(copy.deepcopy(model), skip=skip, **arithmetic)


def quantize_model_(model: nn.Module, *, skip: tuple[str, ...] = (), **arithmetic: Any) -> nn.Module:
    """Change a model in place as `quantize_model` does. Parameters stay the same objects, which optimizers need."""
    layers = [item for item in model.named_modules(remove_duplicate=False) if type(item[1]) in LAYERS]
    for pattern in skip:
        if not any(fnmatch(name, pattern) for name, _ in layers):
            raise ValueError(
                f"skip={pattern!r} matches none of the layers: {_first_names(name for name, _ in layers)}"
            )
    chosen = {m for name, m in layers if not any(fnmatch(name, pattern) for pattern in skip)}
    if not chosen:
        kinds = ", ".join(kind.__name__ for kind in LAYERS)
        why = "all are skipped" if layers else f"none is exactly a {kinds}"
        raise ValueError(
            f"no layer of {type(model).__name__} can be replaced: {why}; nothing would be rounded"
        )
    return replace_layers_(model, dict.fromkeys(chosen, Arithmetic.of(**arithmetic)))


def replace_layers_(
    model: nn.Module,
    chosen: Mapping[nn.Module, Arithmetic],
    kinds: Mapping[type[nn.Module], type[Quantized]] = LAYERS,
) -> nn.Module:
    """Replace layers of a model, in place, by layers with rounded products.

    Args:
        model: Any module.
        chosen: The layers to replace, and the arithmetic of each new layer.
        kinds: For each class of layers, the class that replaces it.

    Returns:
        The model, or the new layer if the model itself is replaced.
    """
    replacements = {
        layer: kinds[type(layer)].from_module(layer, arithmetic) for layer, arithmetic in chosen.items()
    }
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in replacements and name:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, replacements[module])
    for module, attribute, value in unfused_settings(model):
        setattr(module, attribute, value)
    return replacements.get(model, model)


def unfused_settings(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Return modules, attributes and values that prevent PyTorch's encoder layers from using their fused path.

    In evaluation, these layers pass the weights of their Linear layers to one fused float32 operator, and never call
    the Linear layers. These attributes prevent this.
    """
    found: list[tuple[nn.Module, str, Any]] = []
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            found.append((module, "activation_relu_or_gelu", 0))
        elif isinstance(module, nn.TransformerEncoder):
            found.append((module, "use_nested_tensor", False))
    return found


def _first_names(names: Iterable[str], most: int = 6) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "") or "there are none"
