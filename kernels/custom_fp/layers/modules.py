"""Layers whose matrix products run in a custom accumulator, forward and backward, and a rounding layer.

A layer computes what torch.nn's layer of the same arguments does, except that

    operands     x and weight are rounded to this format first (the gradient passes straight through)
    gradients    the gradient of the output is rounded to this format before the products of the backward pass
    accumulator  what sums the forward product: a format, that every product and partial sum is rounded to, or an
                 Accumulator (custom_fp.matmul)
    backward_accumulator   the same for both products of the backward pass; default: accumulator

None leaves a step in float32. The bias is added in float32, and where windows of a convolution overlap, the parts
of the input's gradient are added in float32.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from custom_fp.accumulator import Accumulator
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.layers.attachment import attach_
from custom_fp.layers.products import Arithmetic, Conv, Linear, Nearest, Sums, round_gradient
from custom_fp.ops import quantize


class Quantizer(nn.Module):
    """Rounds activations to `forward` and their gradients to `backward` (None: left alone); nearest even.

    Any format: with scales too, which are then taken from each tensor or its blocks (see scaled/).
    """

    def __init__(
        self, forward: NumberFormat | str | None = None, backward: NumberFormat | str | None = None
    ) -> None:
        super().__init__()
        self.forward_format, self.backward_format = forward and parse(forward), backward and parse(backward)

    def forward(self, x: Tensor) -> Tensor:
        if self.backward_format is not None:
            x = round_gradient(x, Nearest(self.backward_format))
        return x if self.forward_format is None else quantize(x, self.forward_format)

    def extra_repr(self) -> str:
        return f"forward={self.forward_format}, backward={self.backward_format}"


class Quantized:
    """What all layers share: their arithmetic, and how they take over an existing layer."""

    arithmetic: Arithmetic

    def __init__(
        self,
        *args,
        accumulator: Accumulator | Format | str | None = None,
        backward_accumulator: Accumulator | Format | str | None = None,
        kahan: bool = False,
        operands: NumberFormat | str | None = None,
        gradients: NumberFormat | str | None = None,
        **kwargs,
    ) -> None:
        """The other arguments are those of torch.nn's layer."""
        super().__init__(*args, **kwargs)
        self.arithmetic = Arithmetic.of(accumulator, backward_accumulator, kahan, operands, gradients)

    @classmethod
    def from_module(cls, module: nn.Module, arithmetic: Arithmetic):
        """A layer with the parameters (the same objects), hooks and settings of a torch.nn layer."""
        layer = cls.__new__(cls)
        layer.__dict__.update(module.__dict__)
        layer.arithmetic = arithmetic
        return layer

    @classmethod
    def attach_to(cls, module: nn.Module, arithmetic: Arithmetic) -> None:
        """Let a torch.nn layer compute by `arithmetic`. It stays the same object (see `attachment.py`)."""
        attach_(module, cls)
        module.arithmetic = arithmetic

    @property
    def in_force(self) -> Arithmetic:
        """The arithmetic of the mode that the layer is in: evaluated, it draws nothing."""
        return self.arithmetic if self.training else self.arithmetic.evaluated

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.arithmetic}"


class QuantLinear(Quantized, nn.Linear):
    """torch.nn.Linear in a custom accumulator; see the module's docstring for the keyword arguments."""

    def forward(self, x: Tensor) -> Tensor:
        return project(self.in_force, x, self.weight, self.bias)


def project(arithmetic: Arithmetic, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch.nn.functional.linear by an arithmetic; the bias is added in float32. Of the dtype of x, without a bias."""
    if not arithmetic:
        return F.linear(x, weight, bias)
    if arithmetic.accumulators:
        rows = arithmetic.multiply(Sums(arithmetic), x, weight, _rows, torch.t)
        result = rows.view(*x.shape[:-1], len(weight))
    else:
        result = arithmetic.multiply(Linear(), x, weight)
    result = result.to(x.dtype)
    return result if bias is None else result + bias


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


class _QuantConv(Quantized):
    """Convolution as torch has it, or, where an accumulator is emulated, as one matrix product a group over the windows
    of the input (im2col). Legend: B samples, G groups, C channels, M channels of the result, R windows in all."""

    def forward(self, x: Tensor) -> Tensor:
        dimensions = len(self.kernel_size)
        if not self.arithmetic:
            return super().forward(x)
        if x.dim() == dimensions + 1:
            return self(x.unsqueeze(0)).squeeze(0)
        result = (self._by_windows if self.arithmetic.accumulators else self._by_torch)(x).to(x.dtype)
        return result if self.bias is None else result + self.bias.view(-1, *[1] * dimensions)

    def _by_torch(self, x: Tensor) -> Tensor:
        pads_itself = self.padding_mode == "zeros" and not isinstance(self.padding, str)
        padding = self.padding if pads_itself else (0,) * len(self.kernel_size)
        kernel = Conv(self.stride, padding, self.dilation, self.groups)
        as_it_is_or_padded = (lambda x: x) if pads_itself else self._padded
        return self.in_force.multiply(kernel, x, self.weight, as_it_is_or_padded)

    def _by_windows(self, x: Tensor) -> Tensor:
        kernel = Sums(self.in_force)
        product_GxRxM = self.in_force.multiply(kernel, x, self.weight, self._windows, self._columns)
        result = product_GxRxM.reshape(self.groups, x.shape[0], *self._size_out(x), -1)
        return result.movedim(-1, 1).movedim(2, 0).reshape(x.shape[0], self.out_channels, *self._size_out(x))

    def _padded(self, x: Tensor) -> Tensor:
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        around = self._reversed_padding_repeated_twice
        return F.pad(x, around, mode=mode) if any(around) else x

    def _windows(self, x: Tensor) -> Tensor:
        """(G, R, C / G * kernel...)"""
        x, dimensions = self._padded(x), len(self.kernel_size)
        for i, (size, stride, dilation) in enumerate(
            zip(self.kernel_size, self.stride, self.dilation, strict=True)
        ):
            x = x.unfold(2 + i, (size - 1) * dilation + 1, stride)[..., ::dilation]
        batch, _, *rest = x.shape  # B x C x out... x kernel...
        group_in = self.in_channels // self.groups
        grouped = x.reshape(batch, self.groups, group_in, *rest).movedim(1, 0)  # G x B x C/G x ...
        grouped = grouped.movedim(2, 2 + dimensions)  # G x B x out... x C/G x kernel...
        return grouped.reshape(self.groups, -1, group_in * math.prod(self.kernel_size))

    def _columns(self, weight: Tensor) -> Tensor:
        """(G, C / G * kernel..., M / G)"""
        depth = self.in_channels // self.groups * math.prod(self.kernel_size)
        return weight.reshape(self.groups, self.out_channels // self.groups, depth).mT

    def _size_out(self, x: Tensor) -> list[int]:
        around = self._reversed_padding_repeated_twice  # of the last dimension first
        pads = [a + b for a, b in zip(around[-2::-2], around[::-2], strict=True)]
        return [
            (n + pad - (size - 1) * dilation - 1) // stride + 1
            for n, pad, size, dilation, stride in zip(
                x.shape[2:], pads, self.kernel_size, self.dilation, self.stride, strict=True
            )
        ]


class QuantConv1d(_QuantConv, nn.Conv1d):
    """torch.nn.Conv1d in a custom accumulator; see the module's docstring for the keyword arguments."""


class QuantConv2d(_QuantConv, nn.Conv2d):
    """torch.nn.Conv2d in a custom accumulator; see the module's docstring for the keyword arguments."""


class QuantConv3d(_QuantConv, nn.Conv3d):
    """torch.nn.Conv3d in a custom accumulator; see the module's docstring for the keyword arguments."""


LAYERS = {nn.Linear: QuantLinear, nn.Conv1d: QuantConv1d, nn.Conv2d: QuantConv2d, nn.Conv3d: QuantConv3d}


def quantize_model(model: nn.Module, *, skip: tuple[str, ...] = (), **arithmetic) -> nn.Module:
    """A copy of a model in which Linear and Conv1d/2d/3d layers run in a custom accumulator.

    skip: names of layers to leave alone, with * and ? as in the shell ("head", "layers.0.*"). The other arguments
    are those of the layers: accumulator, backward_accumulator, kahan, operands, gradients. Layers of a subclass of
    torch.nn's (transposed convolutions, say, or a user's own) are left alone: what they compute is theirs. So are
    products that are no layer (attention's, a tied head). Raises ValueError where no layer is replaced, and for a
    pattern of `skip` that matches none: the model would compute what it did before.
    """
    return quantize_model_(copy.deepcopy(model), skip=skip, **arithmetic)


def quantize_model_(model: nn.Module, *, skip: tuple[str, ...] = (), **arithmetic) -> nn.Module:
    """`quantize_model` on the model itself. Parameters stay the same objects, so an optimizer keeps its grip."""
    layers = [item for item in model.named_modules(remove_duplicate=False) if type(item[1]) in LAYERS]
    for pattern in skip:
        if not any(fnmatch(name, pattern) for name, _ in layers):
            raise ValueError(
                f"skip={pattern!r} matches none of the layers: {_some(name for name, _ in layers)}"
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
    model: nn.Module, chosen: Mapping[nn.Module, Arithmetic], kinds: Mapping[type, type] = LAYERS
) -> nn.Module:
    """The model with these layers of it, each of a class that `kinds` has another for, computing by an arithmetic of
    its own wherever they stand; a model that is such a layer itself is replaced."""
    made = {layer: kinds[type(layer)].from_module(layer, arithmetic) for layer, arithmetic in chosen.items()}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in made and name:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, made[module])
    for module, attribute, value in unfused_settings(model):
        setattr(module, attribute, value)
    return made.get(model, model)


def unfused_settings(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Return the modules, attributes and values that keep torch's encoder layers from their fused path.

    In evaluation these layers hand the weights of their Linear layers to one fused float32 operator and never call the
    Linear layers, unless one of these attributes says otherwise.
    """
    found: list[tuple[nn.Module, str, Any]] = []
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            found.append((module, "activation_relu_or_gelu", 0))
        elif isinstance(module, nn.TransformerEncoder):
            found.append((module, "use_nested_tensor", False))
    return found


def _some(names: Iterable[str], most: int = 6) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "") or "there are none"
