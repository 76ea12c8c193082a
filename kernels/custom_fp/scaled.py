"""quantize, encode, decode, pack and unpack for formats with scales: codebooks and MX.

Blocks are cut from the elements in memory order; a codebook without a block size has one scale for the tensor.

NaN, inf   a block that holds one has a NaN scale and decodes to NaN throughout, so that a diverged run stays visible
-0         becomes +0 in a codebook and in mxint8, stays -0 in the floating-point elements of MX
zeros      a block of zeros decodes to zeros (a codebook without zero: to its value nearest to zero times 0)
subnormal  kept; a codebook's scale may be subnormal, MX's e8m0 ends at 2**-127
ties       codebook: to the smaller magnitude, of -v and v to v; MX: to nearest even
overflow   none in a codebook; MX elements saturate at the largest value (section 6.3 of MX 1.0)

Inputs are float32, float64, float16 or bfloat16 and rounded to float32 first; never written. Tensors on the CPU are
computed by the compiled extension (scaled_native.py), others, or without it, by torch (scaled_torch.py): the same
bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from custom_fp import eager, scaled_torch
from custom_fp.checks import check_float, deliver, dense, destination, kind
from custom_fp.formats.names import ScaledFormat


def quantize(x: Tensor, fmt: ScaledFormat, out: Tensor | None = None) -> Tensor:
    """decode(encode(x)): float32 of x's shape."""
    check_float(x)
    result = destination(out, x.shape, torch.float32, x.device, (x,))
    _side(x).quantize_rows(_source(x).view(1, -1), fmt, result.view(1, -1))
    return deliver(result, out)


def quantize_rows(x_RxN: Tensor, fmt: ScaledFormat) -> Tensor:
    """Each row quantized as a tensor of its own: float32, (R, N)."""
    check_float(x_RxN)
    source = _source(x_RxN)
    result = torch.empty_like(source)
    _side(x_RxN).quantize_rows(source, fmt, result)
    return result


def encode(x: Tensor, fmt: ScaledFormat) -> tuple[Tensor, Tensor]:
    """(codes, scales): uint8 of x's shape, and a scale for each block in order (float32, for MX uint8 e8m0)."""
    check_float(x)
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scales_B = torch.empty(fmt.scales(x.numel()), dtype=scaled_torch.scale_dtype(fmt), device=x.device)
    _side(x).encode(_source(x).view(-1), fmt, codes.view(-1), scales_B)
    return codes, scales_B


def decode(codes: Tensor, scales: Tensor, fmt: ScaledFormat) -> Tensor:
    """The float32 values of codes with their scales, as `encode` gives them."""
    check_encoded(codes, scales, fmt)
    values = torch.empty(codes.shape, dtype=torch.float32, device=codes.device)
    _side(codes).decode(dense(codes).view(-1), dense(scales), fmt, values.view(-1))
    return values


def check_encoded(codes: Tensor, scales: Tensor, fmt: ScaledFormat) -> None:
    if codes.dtype is not torch.uint8:
        raise TypeError(f"decode takes uint8 codes; got {kind(codes)}")
    expected = scaled_torch.scale_dtype(fmt)
    if scales.dtype is not expected or scales.shape != (fmt.scales(codes.numel()),):
        raise ValueError(
            f"{codes.numel()} values of {fmt} have {fmt.scales(codes.numel())} scales of {expected}; got "
            f"{list(scales.shape)} of {scales.dtype}"
        )


def pack(x: Tensor, fmt: ScaledFormat, out: Tensor | None = None) -> Tensor:
    """The scales' bytes, little-endian, then ceil(n / 8) * k bytes of codes as `custom_fp.pack` lays them out."""
    check_float(x)
    data = destination(out, (fmt.packed_size(x.numel()),), torch.uint8, x.device, (x,))
    _side(x).pack(_source(x).view(-1), fmt, *_parts(data, fmt, x.numel()))
    return deliver(data, out)


def unpack(data: Tensor, fmt: ScaledFormat, shape: Sequence[int], out: Tensor | None = None) -> Tensor:
    """The values that `pack` wrote, float32 of the given shape."""
    check_packed(data, fmt, shape)
    n = math.prod(shape)
    values = destination(out, shape, torch.float32, data.device, (data,))
    _side(data).unpack(*_parts(dense(data), fmt, n), fmt, values.view(-1))
    return deliver(values, out)


def check_packed(data: Tensor, fmt: ScaledFormat, shape: Sequence[int]) -> None:
    n = math.prod(shape)
    if data.dtype is not torch.uint8 or data.shape != (fmt.packed_size(n),):
        raise ValueError(
            f"unpack: {n} values of {fmt} are {fmt.packed_size(n)} bytes; got {kind(data)} of {list(data.shape)}"
        )


def _source(x: Tensor) -> Tensor:
    if x.dtype is torch.float64:  # torch's own conversion follows the caller's flush-to-zero setting
        return eager.quantize(x.detach(), "fp32")
    return dense(x.detach().float())


def _parts(data: Tensor, fmt: ScaledFormat, n: int) -> tuple[Tensor, Tensor]:
    """The bytes of the scales, and those of the codes."""
    head = fmt.scales(n) * fmt.scale_bits // 8
    return data[:head], data[head:]


def _side(x: Tensor) -> ModuleType:
    return _compiled() if x.device.type == "cpu" else scaled_torch


@cache
def _compiled() -> ModuleType:
    try:
        from custom_fp import scaled_native
    except ImportError:  # not built: backends.py warns of that
        return scaled_torch
    return scaled_native
