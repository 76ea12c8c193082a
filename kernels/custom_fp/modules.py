"""Layers whose matrix products run in a custom accumulator, forward and backward, and a rounding layer.

A layer computes what torch.nn's layer of the same arguments does, except that

    operands     x and weight are rounded to this format first (the gradient passes straight through)
    gradients    the gradient of the output is rounded to this format before the products of the backward pass
    accumulator  every product and partial sum of the forward product is rounded to this format (custom_fp.matmul)
    backward_accumulator   the same for both products of the backward pass; default: accumulator

None leaves a step in float32. The bias is added in float32, and where windows of a convolution overlap, the parts
of the input's gradient are added in float32.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from custom_fp.formats.names import AnyFormat, ScaledFormat, parse
from custom_fp.formats.scalar import Format
from custom_fp.ops import matmul, quantize


class _RoundGradient(torch.autograd.Function):
    """Identity forward; the gradient is rounded backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, fmt: str) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.fmt = inputs[1]

    @staticmethod
    def backward(ctx, grad: Tensor):
        return quantize(grad, ctx.fmt), None


class _RoundGradientNotTangent(_RoundGradient):
    """With the identity for tangents too; apart, for torch.compile takes no Function that has them."""

    @staticmethod
    def jvp(ctx, tangent: Tensor, _):
        return tangent.view_as(tangent)


def _round_gradient(x: Tensor, fmt: ScaledFormat | str) -> Tensor:
    return (_RoundGradient if torch.compiler.is_compiling() else _RoundGradientNotTangent).apply(x, fmt)


def _name(fmt: Format | str | None) -> str | None:
    return None if fmt is None else Format.parse(fmt).name


def _name_or_scaled(fmt: AnyFormat | str | None) -> ScaledFormat | str | None:
    """As `_name`; a format with scales is returned as it is, for a table of one's own has no name to find it by."""
    if fmt is None:
        return None
    parsed = parse(fmt)
    return parsed.name if isinstance(parsed, Format) else parsed


class Quantizer(nn.Module):
    """Rounds activations to `forward` and their gradients to `backward` (None: left alone); nearest even.

    Any format: with scales too, which are then taken from each tensor or its blocks (see scaled/).
    """

    def __init__(
        self, forward: AnyFormat | str | None = None, backward: AnyFormat | str | None = None
    ) -> None:
        super().__init__()
        self.forward_format, self.backward_format = _name_or_scaled(forward), _name_or_scaled(backward)

    def forward(self, x: Tensor) -> Tensor:
        if self.backward_format is not None:
            x = _round_gradient(x, self.backward_format)
        return x if self.forward_format is None else quantize(x, self.forward_format)

    def extra_repr(self) -> str:
        return f"forward={self.forward_format}, backward={self.backward_format}"


@dataclass(frozen=True)
class _Arithmetic:
    accumulator: str | None
    backward_accumulator: str | None
    kahan: bool
    operands: ScaledFormat | str | None
    gradients: ScaledFormat | str | None

    @classmethod
    def of(
        cls, accumulator=None, backward_accumulator=None, kahan=False, operands=None, gradients=None
    ) -> _Arithmetic:
        forward = _name(accumulator)
        return cls(
            forward,
            _name(backward_accumulator) or forward,
            kahan,
            _name_or_scaled(operands),
            _name_or_scaled(gradients),
        )

    def round_operand(self, x: Tensor) -> Tensor:
        return x if self.operands is None else quantize(x, self.operands)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        if self.backward_accumulator is None:  # then the forward one is None, too
            product = a.float() @ b.float()
        else:
            product = matmul(
                a,
                b,
                accumulator=self.accumulator or "fp32",
                kahan=self.kahan,
                backward_accumulator=self.backward_accumulator,
            )
        return product if self.gradients is None else _round_gradient(product, self.gradients)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self).items() if value)


class _Quantized:
    """What all layers share: their arithmetic, and how they take over an existing layer."""

    arithmetic: _Arithmetic

    @classmethod
    def from_module(cls, module: nn.Module, **arithmetic):
        """A layer with the parameters (the same objects), hooks and settings of a torch.nn layer."""
        layer = cls.__new__(cls)
        layer.__dict__.update(module.__dict__)
        layer.arithmetic = _Arithmetic.of(**arithmetic)
        return layer

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.arithmetic}"


class QuantLinear(_Quantized, nn.Linear):
    """torch.nn.Linear in a custom accumulator; see the module's docstring for the keyword arguments."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype=None,
        **arithmetic,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.arithmetic = _Arithmetic.of(**arithmetic)

    def forward(self, x: Tensor) -> Tensor:
        rounded = self.arithmetic.round_operand
        result = self.arithmetic.multiply(rounded(x), rounded(self.weight).t()).to(x.dtype)
        return result if self.bias is None else result + self.bias


class _QuantConv(_Quantized):
    """Convolution as one matrix product a group, over the windows of the input (im2col)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device=None,
        dtype=None,
        **arithmetic,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.arithmetic = _Arithmetic.of(**arithmetic)

    def forward(self, x: Tensor) -> Tensor:
        dimensions = len(self.kernel_size)
        if x.dim() == dimensions + 1:
            return self(x.unsqueeze(0)).squeeze(0)
        windows = self._windows(self.arithmetic.round_operand(x))  # B x C x out... x kernel...
        batch, _, *rest = windows.shape
        size_out, group_in = rest[:dimensions], self.in_channels // self.groups
        depth, rows = group_in * math.prod(self.kernel_size), batch * math.prod(size_out)

        grouped = windows.reshape(batch, self.groups, group_in, *rest).movedim(1, 0)  # G x B x C/G x ...
        grouped = grouped.movedim(2, 2 + dimensions)  # G x B x out... x C/G x kernel...
        weight = self.arithmetic.round_operand(self.weight)
        weight = weight.reshape(self.groups, self.out_channels // self.groups, depth)
        product = self.arithmetic.multiply(grouped.reshape(self.groups, rows, depth), weight.mT)
        result = product.to(x.dtype).reshape(self.groups, batch, *size_out, -1)
        result = result.movedim(-1, 1).movedim(2, 0).reshape(batch, self.out_channels, *size_out)
        return result if self.bias is None else result + self.bias.view(-1, *[1] * dimensions)

    def _windows(self, x: Tensor) -> Tensor:
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        if any(self._reversed_padding_repeated_twice):
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=mode)
        for i, (size, stride, dilation) in enumerate(
            zip(self.kernel_size, self.stride, self.dilation, strict=True)
        ):
            x = x.unfold(2 + i, (size - 1) * dilation + 1, stride)[..., ::dilation]
        return x


class QuantConv1d(_QuantConv, nn.Conv1d):
    """torch.nn.Conv1d in a custom accumulator; see the module's docstring for the keyword arguments."""


class QuantConv2d(_QuantConv, nn.Conv2d):
    """torch.nn.Conv2d in a custom accumulator; see the module's docstring for the keyword arguments."""


class QuantConv3d(_QuantConv, nn.Conv3d):
    """torch.nn.Conv3d in a custom accumulator; see the module's docstring for the keyword arguments."""


_LAYERS = {
    nn.Linear: QuantLinear,
    nn.Conv1d: QuantConv1d,
    nn.Conv2d: QuantConv2d,
    nn.Conv3d: QuantConv3d,
}


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
    made: dict[nn.Module, nn.Module] = {}
    layers = [item for item in model.named_modules(remove_duplicate=False) if type(item[1]) in _LAYERS]
    for pattern in skip:
        if not any(fnmatch(name, pattern) for name, _ in layers):
            raise ValueError(
                f"skip={pattern!r} matches none of the layers: {_some(name for name, _ in layers)}"
            )
    for name, module in layers:
        if any(fnmatch(name, pattern) for pattern in skip):
            continue
        if module not in made:
            made[module] = _LAYERS[type(module)].from_module(module, **arithmetic)
        if not name:
            return made[module]
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[module])
    if not made:
        kinds = ", ".join(kind.__name__ for kind in _LAYERS)
        why = "all are skipped" if layers else f"none is exactly a {kinds}"
        raise ValueError(
            f"no layer of {type(model).__name__} can be replaced: {why}; nothing would be rounded"
        )
    _keep_off_fused_paths(model)
    return model


def _keep_off_fused_paths(model: nn.Module) -> None:
    """Evaluated, torch's encoder layers hand the weights of their Linear layers to one fused float32 operator and
    never call the layers; these settings are among those that torch asks before it does."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


def _some(names: Iterable[str], most: int = 6) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "") or "there are none"
