"""The operators on real tensors: check, find the backend, run. ops.py documents them, registration.py wraps them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from custom_fp.backends import for_device
from custom_fp.checks import (
    as_source,
    check_bytes,
    check_codes,
    check_float,
    check_matrices,
    check_offset,
    check_rule,
    check_terms,
    code_dtype,
    deliver,
    dense,
    destination,
    draw_seed,
    packed_size,
)
from custom_fp.formats.scalar import Format

FormatLike = Format | str


def quantize(
    x: Tensor,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    check_float(x)
    check_rule(rounding, overflow)
    check_offset(offset)
    fmt = Format.parse(fmt)
    source = as_source(x)
    if out is None and source.dtype is torch.float32:
        result = torch.empty_like(source)  # half the cost of naming shape, dtype and device
    else:
        result = destination(out, x.shape, torch.float32, x.device, (x,))
    seed = draw_seed(seed) if rounding == "stochastic" else 0
    for_device(x.device.type).quantize(source, fmt, rounding, overflow, seed, offset, result)
    return deliver(result, out)


def scale_pow2(x: Tensor, shift: int, out: Tensor | None = None) -> Tensor:
    check_float(x)
    result = destination(out, x.shape, torch.float32, x.device, (x,))
    for_device(x.device.type).scale_pow2(as_source(x), int(shift), result)
    return deliver(result, out)


def max_exponent(x: Tensor) -> int | None:
    check_float(x)
    return for_device(x.device.type).max_exponent(as_source(x))


def accumulate(
    tensors: Sequence[Tensor],
    fmt: FormatLike,
    kahan: bool = False,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    for tensor in tensors:
        check_float(tensor)
    check_terms("accumulate", tensors)
    check_rule(rounding, overflow)
    check_offset(offset)
    first = tensors[0]
    sources = [as_source(tensor) for tensor in tensors]
    result = destination(out, first.shape, torch.float32, first.device, tensors)
    if any(source.data_ptr() == result.data_ptr() for source in sources[1:]):
        result = torch.empty_like(result)  # out is one of the later terms, still to be read
    seed = draw_seed(seed) if rounding == "stochastic" else 0
    for_device(first.device.type).accumulate(
        sources, Format.parse(fmt), kahan, rounding, overflow, seed, offset, result
    )
    return deliver(result, out)


def encode(x: Tensor, fmt: FormatLike, out: Tensor | None = None) -> Tensor:
    check_float(x)
    fmt = Format.parse(fmt)
    result = destination(out, x.shape, code_dtype(fmt), x.device, (x,))
    for_device(x.device.type).encode(as_source(x), fmt, result)
    return deliver(result, out)


def decode(codes: Tensor, fmt: FormatLike, out: Tensor | None = None) -> Tensor:
    check_codes(codes)
    result = destination(out, codes.shape, torch.float32, codes.device, (codes,))
    for_device(codes.device.type).decode(dense(codes), Format.parse(fmt), result)
    return deliver(result, out)


def pack(
    x: Tensor,
    fmt: FormatLike,
    shift: int = 0,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    check_float(x)
    check_rule(rounding, overflow)
    check_offset(offset)
    fmt = Format.parse(fmt)
    result = destination(out, (packed_size(x.numel(), fmt),), torch.uint8, x.device, (x,))
    seed = draw_seed(seed) if rounding == "stochastic" else 0
    for_device(x.device.type).pack(as_source(x), fmt, int(shift), rounding, overflow, seed, offset, result)
    return deliver(result, out)


def unpack(
    data: Tensor, fmt: FormatLike, shape: Sequence[int], shift: int = 0, out: Tensor | None = None
) -> Tensor:
    fmt = Format.parse(fmt)
    check_bytes("unpack", data, math.prod(shape), fmt)
    result = destination(out, shape, torch.float32, data.device, (data,))
    for_device(data.device.type).unpack(dense(data), fmt, int(shift), result)
    return deliver(result, out)


def accumulate_packed(
    payloads: Sequence[Tensor],
    fmt: FormatLike,
    n: int,
    kahan: bool = False,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    offset: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    fmt = Format.parse(fmt)
    for payload in payloads:
        check_bytes("accumulate_packed", payload, n, fmt)
    check_terms("accumulate_packed", payloads)
    check_rule(rounding, overflow)
    check_offset(offset)
    sources = [dense(payload) for payload in payloads]
    device = payloads[0].device
    result = destination(out, (packed_size(n, fmt),), torch.uint8, device, payloads)
    if any(source.data_ptr() == result.data_ptr() for source in sources[1:]):
        result = torch.empty_like(result)
    seed = draw_seed(seed) if rounding == "stochastic" else 0
    for_device(device.type).accumulate_packed(
        sources, fmt, n, kahan, rounding, overflow, seed, offset, result
    )
    return deliver(result, out)


def matmul(a: Tensor, b: Tensor, accumulator: FormatLike, kahan: bool = False) -> Tensor:
    """Matrices or batches of them; leading dimensions broadcast."""
    check_matrices(a, b)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a_BxMxK, b_BxKxN = _as_batch(a, batch), _as_batch(b, batch)
    out = torch.empty((math.prod(batch), a.shape[-2], b.shape[-1]), dtype=torch.float32, device=a.device)
    for_device(a.device.type).matmul(a_BxMxK, b_BxKxN, Format.parse(accumulator), kahan, out)
    return out.view(*batch, a.shape[-2], b.shape[-1])


def _as_batch(x: Tensor, batch: torch.Size) -> Tensor:
    """(B or 1) x rows x columns, dense; 1 where all of the batch shares one matrix."""
    if math.prod(x.shape[:-2]) == 1:
        return as_source(x).view(1, *x.shape[-2:])
    return as_source(x.expand(*batch, *x.shape[-2:])).view(-1, *x.shape[-2:])
