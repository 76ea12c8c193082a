"""The torch side of scaled.py: for any device, and the reference that the compiled side is held to.

Tensors are contiguous and checked; results are written where the caller says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, singledispatch

import torch
from torch import Tensor

from custom_fp import eager
from custom_fp.formats.block import INT8_FRACTION_BITS, BlockFormat
from custom_fp.formats.codebook import Codebook
from custom_fp.formats.names import ScaledFormat
from custom_fp.reference import write

Encoded = tuple[Tensor, Tensor]  # codes or values of elements (B, K), scales (B,)


def quantize_rows(x_RxN: Tensor, fmt: ScaledFormat, out_RxN: Tensor) -> None:
    """Each row as a tensor of its own."""
    rows, n = x_RxN.shape
    if n == 0 or rows == 0:
        return
    block = min(fmt.block or n, n)
    x_BxK = torch.nn.functional.pad(x_RxN, (0, -n % block)).view(-1, block)
    write(_round(fmt, x_BxK, x_BxK.abs().amax(1)).view(rows, -1)[:, :n], out_RxN)


def encode(x_n: Tensor, fmt: ScaledFormat, codes_n: Tensor, scales_B: Tensor) -> None:
    x_BxK = _in_blocks(x_n, fmt)
    largest_B = x_BxK.abs().amax(1) if x_n.numel() else x_n.new_zeros(x_BxK.shape[0])
    codes_BxK, found_B = _encode(fmt, x_BxK, largest_B)
    codes_n.copy_(codes_BxK.reshape(-1)[: x_n.numel()])
    scales_B.copy_(found_B)


def decode(codes_n: Tensor, scales_B: Tensor, fmt: ScaledFormat, out_n: Tensor) -> None:
    write(_decode(fmt, _in_blocks(codes_n, fmt), scales_B).reshape(-1)[: codes_n.numel()], out_n)


def pack(
    x_n: Tensor, fmt: ScaledFormat, head: Tensor, body: Tensor, encode: Callable[..., None] = encode
) -> None:
    """head: the scales' bytes; body: the packed codes."""
    codes_n = torch.empty(x_n.shape, dtype=torch.uint8, device=x_n.device)
    scales_B = torch.empty(fmt.scales(x_n.numel()), dtype=scale_dtype(fmt), device=x_n.device)
    encode(x_n, fmt, codes_n, scales_B)
    head.copy_(scales_B.view(torch.uint8))
    body.copy_(pack_codes(codes_n, fmt))


def unpack(
    head: Tensor, body: Tensor, fmt: ScaledFormat, out_n: Tensor, decode: Callable[..., None] = decode
) -> None:
    decode(unpack_codes(body, out_n.numel(), fmt).contiguous(), scales_of(head, fmt), fmt, out_n)


def scale_dtype(fmt: ScaledFormat) -> torch.dtype:
    return torch.float32 if fmt.scale_bits == 32 else torch.uint8


def scales_of(head: Tensor, fmt: ScaledFormat) -> Tensor:
    """The scales that these bytes are."""
    return head.clone().view(scale_dtype(fmt))  # a view of another dtype needs an aligned start


def _in_blocks(x_n: Tensor, fmt: ScaledFormat) -> Tensor:
    """(B, K), the last block filled up with zeros."""
    if fmt.block is None or fmt.block > x_n.numel() > 0:
        return x_n.reshape(1, -1)
    blocks = fmt.scales(x_n.numel())
    if missing := blocks * fmt.block - x_n.numel():
        x_n = torch.nn.functional.pad(x_n, (0, missing))
    return x_n.reshape(blocks, fmt.block)


@singledispatch
def _encode(fmt: ScaledFormat, x_BxK: Tensor, largest_B: Tensor) -> Encoded:
    raise TypeError(f"{fmt!r} is no format with scales")


@singledispatch
def _round(fmt: ScaledFormat, x_BxK: Tensor, largest_B: Tensor) -> Tensor:
    """decode(encode(x)), where there is no shorter way."""
    return _decode(fmt, *_encode(fmt, x_BxK, largest_B))


@singledispatch
def _decode(fmt: ScaledFormat, codes_BxK: Tensor, scales_B: Tensor) -> Tensor:
    raise TypeError(f"{fmt!r} is no format with scales")


# ---- codebooks


@_encode.register
def _(fmt: Codebook, x_BxK: Tensor, largest_B: Tensor) -> Encoded:
    finite_B = torch.isfinite(largest_B)
    scales_B = torch.where(finite_B, largest_B, math.nan)
    divisors_B = torch.where(scales_B > 0, scales_B, 1.0)
    y_BxK = torch.where(finite_B[:, None], x_BxK / divisors_B[:, None], -1.0)
    tables = tables_of(fmt, str(x_BxK.device))
    index_BxK = torch.bucketize(y_BxK, tables.thresholds, out_int32=True)
    return tables.codes[index_BxK], scales_B


@_decode.register
def _(fmt: Codebook, codes_BxK: Tensor, scales_B: Tensor) -> Tensor:
    return tables_of(fmt, str(codes_BxK.device)).values[codes_BxK.to(torch.int32)] * scales_B[:, None]


@dataclass(frozen=True)
class _Tables:
    thresholds: Tensor  # float32, ascending
    codes: Tensor  # uint8 (256,) in ascending order of value
    ascending: Tensor  # float32 (256,)
    values: Tensor  # float32 (256,) by code, NaN where there is none


@cache
def tables_of(fmt: Codebook, device: str) -> _Tables:
    def filled(values: Sequence[float], dtype: torch.dtype, rest: float) -> Tensor:
        return torch.tensor([*values, *[rest] * (256 - len(values))], dtype=dtype, device=device)

    return _Tables(
        torch.tensor(fmt.thresholds, dtype=torch.float32, device=device),
        filled(fmt.sorted_codes, torch.uint8, 0),
        filled([fmt.values[code] for code in fmt.sorted_codes], torch.float32, math.nan),
        filled(fmt.values, torch.float32, math.nan),
    )


# ---- MX

_E8M0_BIAS, _E8M0_NAN = 127, 255


def _elements(fmt: BlockFormat, x_BxK: Tensor, largest_B: Tensor) -> Encoded:
    """The values of the elements, float32, and the codes of the scales."""
    exponent_B = torch.frexp(largest_B).exponent - (1 + fmt.emax)  # floor(log2), subnormals too
    finite_B = torch.isfinite(largest_B)
    exponent_B = torch.where((largest_B > 0) & finite_B, exponent_B.clamp(-127, 127), -127)
    # exact but where the product is subnormal, and that is far below the smallest element
    scaled_BxK = x_BxK * _powers(str(x_BxK.device))[_E8M0_BIAS - exponent_B][:, None]
    if fmt.element is None:
        units_BxK = (scaled_BxK * 2.0**INT8_FRACTION_BITS).round().clamp(-128, 127)  # round: half to even
        elements_BxK = units_BxK * 2.0**-INT8_FRACTION_BITS + 0.0  # no -0
    else:
        elements_BxK = eager.quantize(scaled_BxK, fmt.element, overflow="saturate")
    elements_BxK = torch.where(finite_B[:, None], elements_BxK, 0.0)
    return elements_BxK, torch.where(finite_B, exponent_B + _E8M0_BIAS, _E8M0_NAN).to(torch.uint8)


@_round.register
def _(fmt: BlockFormat, x_BxK: Tensor, largest_B: Tensor) -> Tensor:
    elements_BxK, scales_B = _elements(fmt, x_BxK, largest_B)
    return elements_BxK * _powers(str(x_BxK.device))[scales_B.to(torch.int32)][:, None]


@_encode.register
def _(fmt: BlockFormat, x_BxK: Tensor, largest_B: Tensor) -> Encoded:
    elements_BxK, scales_B = _elements(fmt, x_BxK, largest_B)
    if fmt.element is None:
        return (elements_BxK * 2.0**INT8_FRACTION_BITS).to(torch.int8).view(torch.uint8), scales_B
    return eager.encode(elements_BxK, fmt.element), scales_B


@_decode.register
def _(fmt: BlockFormat, codes_BxK: Tensor, scales_B: Tensor) -> Tensor:
    powers_B = _powers(str(codes_BxK.device))[scales_B.to(torch.int32)]
    if fmt.element is None:
        elements = codes_BxK.view(torch.int8).to(torch.float32) * 2.0**-INT8_FRACTION_BITS
    else:
        elements = eager.decode(codes_BxK, fmt.element)
    return elements * powers_B[:, None]


@cache
def _powers(device: str) -> Tensor:
    """2**(i - 127) for i = 0..254, NaN for 255, in float32: the values of e8m0."""
    exponents = torch.arange(-127, 128, dtype=torch.float64)
    return torch.cat([torch.exp2(exponents), torch.tensor([math.nan])]).to(torch.float32).to(device)


# ---- bits


def pack_codes(codes_n: Tensor, fmt: ScaledFormat) -> Tensor:
    """ceil(n / 8) * k bytes: 8 codes in k bytes, code j from bit j * k on, little-endian."""
    bits = fmt.code_bits
    if bits < 8 and isinstance(
        fmt, BlockFormat
    ):  # no code of these is a NaN, so that values keep their codes
        return eager.pack(eager.decode(codes_n, fmt.element), fmt.element)
    padded = torch.nn.functional.pad(codes_n, (0, -codes_n.numel() % 8))
    if bits == 8:
        return padded
    if bits == 4:
        return padded[0::2] | padded[1::2] << 4
    digits = (padded[:, None] >> _places(bits, codes_n.device)) & 1
    return (digits.view(-1, 8) << _places(8, codes_n.device)).sum(1, dtype=torch.uint8)


def unpack_codes(data: Tensor, n: int, fmt: ScaledFormat) -> Tensor:
    bits = fmt.code_bits
    if bits < 8 and isinstance(fmt, BlockFormat):
        return eager.encode(eager.unpack(data, fmt.element, (n,)), fmt.element)
    if bits == 8:
        return data[:n]
    if bits == 4:
        return torch.stack([data & 15, data >> 4], dim=1).view(-1)[:n]
    digits = (data[:, None] >> _places(8, data.device)) & 1
    return (digits.view(-1, bits) << _places(bits, data.device)).sum(1, dtype=torch.uint8)[:n]


def _places(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, dtype=torch.uint8, device=device)
