"""The operators of formats with scales as torch.library ops: what registration.py is for the others.

torch.library takes no Codebook, so an op gets a text, `names.spelled`: the format's name, or all of a format that has
none. Gradients go straight through quantize; the others have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.library import custom_op

from custom_fp import scaled
from custom_fp.checks import check_float
from custom_fp.formats.names import ScaledFormat, as_scaled, read, spelled
from custom_fp.registration import is_plain, one_at_a_time, straight_tangent
from custom_fp.scaled_torch import scale_dtype


def spelled_if_scaled(fmt: ScaledFormat | str) -> str | None:
    """`spelled` of a format with scales, None for any other: for a compiler, a constant."""
    found = as_scaled(fmt)
    return None if found is None else spelled(found)


# What torch.compiler.assume_constant_result does, which imports the whole compiler (a second) to do it.
spelled_if_scaled._dynamo_marked_constant = True


def run(operator: str, tensors: Sequence[Tensor], fmt: ScaledFormat | str, *rest: object):
    """encode, decode, pack or unpack: at once where nothing looks on, else as an op. A text is a spelled format."""
    if not isinstance(fmt, str) and is_plain(*tensors):
        return getattr(scaled, operator)(*tensors, fmt, *rest)
    text = fmt if isinstance(fmt, str) else spelled(fmt)
    return getattr(torch.ops.custom_fp, f"{operator}_scaled")(*(x.detach() for x in tensors), text, *rest)


# ---- quantize --------------------------------------------------------------------------------------------------


@custom_op("custom_fp::quantize_scaled", mutates_args=())
def quantize_scaled(x: Tensor, fmt: str) -> Tensor:
    return scaled.quantize(x, read(fmt))


@quantize_scaled.register_fake
def _(x, fmt):
    check_float(x)
    read(fmt)
    return torch.empty(x.shape, dtype=torch.float32, device=x.device)


def _remember_dtype(ctx, inputs, output):
    ctx.dtype = inputs[0].dtype


def _straight_through(ctx, grad):
    return grad.to(ctx.dtype), None


def _vmap(info, in_dims, x, fmt):
    """A tensor at a time: each of the batch has scales of its own."""
    return torch.stack([QuantizeScaled.apply(one, fmt) for one in x.unbind(in_dims[0])]), 0


quantize_scaled.register_autograd(_straight_through, setup_context=_remember_dtype)
quantize_scaled.register_vmap(_vmap)


class QuantizeScaled(torch.autograd.Function):
    """The op where autograd or torch.func watches: torch.func.grad does not see the autograd of custom ops."""

    @staticmethod
    def forward(x, fmt):
        return scaled.quantize(x, read(fmt)) if is_plain(x) else torch.ops.custom_fp.quantize_scaled(x, fmt)

    setup_context = staticmethod(_remember_dtype)
    backward = staticmethod(_straight_through)
    jvp = staticmethod(straight_tangent)
    vmap = staticmethod(_vmap)


# ---- codes -----------------------------------------------------------------------------------------------------


@custom_op("custom_fp::encode_scaled", mutates_args=())
def encode_scaled(x: Tensor, fmt: str) -> tuple[Tensor, Tensor]:
    return scaled.encode(x, read(fmt))


@encode_scaled.register_fake
def _(x, fmt):
    check_float(x)
    found = read(fmt)
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    return codes, torch.empty(found.scales(x.numel()), dtype=scale_dtype(found), device=x.device)


@custom_op("custom_fp::decode_scaled", mutates_args=())
def decode_scaled(codes: Tensor, scales: Tensor, fmt: str) -> Tensor:
    return scaled.decode(codes, scales, read(fmt))


@decode_scaled.register_fake
def _(codes, scales, fmt):
    scaled.check_encoded(codes, scales, read(fmt))
    return torch.empty(codes.shape, dtype=torch.float32, device=codes.device)


@custom_op("custom_fp::pack_scaled", mutates_args=())
def pack_scaled(x: Tensor, fmt: str) -> Tensor:
    return scaled.pack(x, read(fmt))


@pack_scaled.register_fake
def _(x, fmt):
    check_float(x)
    return torch.empty(read(fmt).packed_size(x.numel()), dtype=torch.uint8, device=x.device)


@custom_op("custom_fp::unpack_scaled", mutates_args=())
def unpack_scaled(data: Tensor, fmt: str, shape: Sequence[int]) -> Tensor:
    return scaled.unpack(data, read(fmt), shape)


@unpack_scaled.register_fake
def _(data, fmt, shape):
    scaled.check_packed(data, read(fmt), shape)
    return torch.empty(shape, dtype=torch.float32, device=data.device)


for _op in (encode_scaled, decode_scaled, pack_scaled, unpack_scaled):
    one_at_a_time(_op)
