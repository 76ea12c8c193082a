"""The public operators: what they check and promise. The arithmetic is in the backends (backends.py).

Rules for all of them. Inputs are float32, float64, float16 or bfloat16 tensors of any shape and strides, rounded
once and never written; results are float32. `out=` takes a tensor of the right shape, dtype and device (any
strides) and returns it. NaN is positive and quiet in every result. Where a tensor or a format does not fit,
TypeError or ValueError says what was given and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from custom_fp.backends import backend, for_device
from custom_fp.format import Format

__all__ = [
    "accumulate",
    "accumulate_packed",
    "backend",
    "decode",
    "encode",
    "max_exponent",
    "pack",
    "packed_size",
    "quantize",
    "scale_pow2",
    "unpack",
]

ROUNDINGS = ("nearest_even", "toward_zero", "stochastic")
OVERFLOWS = ("infinity", "saturate")


def quantize(
    x: Tensor,
    fmt: Format | str,
    *,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """x rounded to the values of a format, as float32 of the same shape.

    rounding
        "nearest_even": IEEE 754-2019 roundTiesToEven. With m = 0 a tie between two normal values goes to the larger
        magnitude (4.3.1: both have an odd digit) and half the smallest value goes to zero, which is even.
        "toward_zero": never overflows. "stochastic": up with a probability equal to the distance, in steps of
        2**-31, from Philox4x32-7 keyed by (seed, element index); with seed None the seed is drawn from torch's
        default generator, so that torch.manual_seed repeats it.
    overflow
        Decided after rounding. "infinity": inf, or NaN where the format has no inf, or max if it has neither.
        "saturate": max, for infinite inputs too.

    Subnormals are kept, of the format and of x; -0 stays -0. inf and NaN stay what they are where the format has
    them; NaN becomes inf (or max) where it has no NaN. Differentiable: the gradient passes straight through.
    """
    fmt = Format.parse(fmt)
    _one_of("rounding", rounding, ROUNDINGS)
    _one_of("overflow", overflow, OVERFLOWS)
    source = _source(x)
    result = _destination(out, x.shape, torch.float32, x.device)
    seed = _seed(seed) if rounding == "stochastic" else 0
    for_device(x.device.type).quantize(source, fmt, rounding, overflow, seed, result)
    return _deliver(result, out)


def scale_pow2(x: Tensor, shift: int, *, out: Tensor | None = None) -> Tensor:
    """x * 2**shift as float32 for any integer shift: rounded once, only where the result is subnormal or too large."""
    source = _source(x)
    result = _destination(out, x.shape, torch.float32, x.device)
    for_device(x.device.type).scale_pow2(source, int(shift), result)
    return _deliver(result, out)


def max_exponent(x: Tensor) -> int | None:
    """ceil(log2(max|x|)) over the finite elements of x; None where they are all zero, or there are none."""
    return for_device(x.device.type).max_exponent(_source(x))


def accumulate(
    tensors: Sequence[Tensor],
    fmt: Format | str,
    *,
    kahan: bool = False,
    rounding: str = "nearest_even",
    seed: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The sum of tensors of one shape, in their order, every partial sum rounded to the format (float32).

    acc = +0; for each g: acc = Q(acc + g), where acc + g is exact before Q rounds it, also for terms g that are no
    values of the format. With kahan: y = Q(g - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t, and c = 0 once t
    is not finite. Q is `quantize` with overflow="infinity".
    """
    fmt = Format.parse(fmt)
    _one_of("rounding", rounding, ROUNDINGS)
    tensors = list(tensors)
    if not tensors:
        raise ValueError("accumulate needs at least one tensor")
    first = tensors[0]
    for tensor in tensors:
        _same_device("accumulate", first, tensor)
        if tensor.shape != first.shape:
            raise ValueError(
                f"accumulate adds tensors of one shape; got {list(first.shape)}, {list(tensor.shape)}"
            )
    sources = [_source(tensor) for tensor in tensors]
    result = _destination(out, first.shape, torch.float32, first.device)
    if any(source.data_ptr() == result.data_ptr() for source in sources[1:]):
        result = torch.empty_like(result)  # out is one of the later terms, still to be read
    seed = _seed(seed) if rounding == "stochastic" else 0
    for_device(first.device.type).accumulate(sources, fmt, kahan, rounding, seed, result)
    return _deliver(result, out)


# ---- codes -----------------------------------------------------------------------------------------------------


def code_dtype(fmt: Format) -> torch.dtype:
    """uint8 up to 8 bits, int32 up to 31, int64 for 32: codes are never negative."""
    if fmt.bits <= 8:
        return torch.uint8
    return torch.int32 if fmt.bits < 32 else torch.int64


def encode(x: Tensor, fmt: Format | str, *, out: Tensor | None = None) -> Tensor:
    """The codes of x (rounded to nearest even first), as uint8, int32 or int64: see `code_dtype`."""
    fmt = Format.parse(fmt)
    source = _source(x)
    result = _destination(out, x.shape, code_dtype(fmt), x.device)
    for_device(x.device.type).encode(source, fmt, result)
    return _deliver(result, out)


def decode(codes: Tensor, fmt: Format | str, *, out: Tensor | None = None) -> Tensor:
    """The float32 values of integer codes, of which the low `fmt.bits` bits are read."""
    fmt = Format.parse(fmt)
    if not isinstance(codes, Tensor) or codes.dtype.is_floating_point or codes.dtype.is_complex:
        raise TypeError(f"decode takes integer codes; got {_kind(codes)}")
    result = _destination(out, codes.shape, torch.float32, codes.device)
    source = codes.to(torch.int64) if codes.dtype is torch.bool else codes
    for_device(codes.device.type).decode(source.contiguous(), fmt, result)
    return _deliver(result, out)


def packed_size(n: int, fmt: Format | str) -> int:
    """Bytes of n packed values: ceil(n / 8) * k."""
    return -(-n // 8) * Format.parse(fmt).bits


def pack(x: Tensor, fmt: Format | str, *, shift: int = 0, out: Tensor | None = None) -> Tensor:
    """x * 2**shift, rounded once to nearest even, as dense bytes: uint8 of length ceil(n / 8) * k.

    8 codes fill k bytes, code j from bit j * k on, little-endian; the last group is filled up with zero codes.
    """
    fmt = Format.parse(fmt)
    source = _source(x)
    result = _destination(out, (packed_size(x.numel(), fmt),), torch.uint8, x.device)
    for_device(x.device.type).pack(source, fmt, int(shift), result)
    return _deliver(result, out)


def unpack(
    data: Tensor, fmt: Format | str, shape: Sequence[int], *, shift: int = 0, out: Tensor | None = None
) -> Tensor:
    """The values that `pack` wrote, times 2**shift, as float32 of the given shape."""
    fmt = Format.parse(fmt)
    shape = torch.Size([shape] if isinstance(shape, int) else shape)
    _check_bytes("unpack", data, math.prod(shape), fmt)
    result = _destination(out, shape, torch.float32, data.device)
    for_device(data.device.type).unpack(data.contiguous(), fmt, int(shift), result)
    return _deliver(result, out)


def accumulate_packed(
    payloads: Sequence[Tensor],
    fmt: Format | str,
    n: int,
    *,
    kahan: bool = False,
    rounding: str = "nearest_even",
    seed: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """pack(accumulate(unpack each payload)) without the float32 tensors in between; n values a payload."""
    fmt = Format.parse(fmt)
    _one_of("rounding", rounding, ROUNDINGS)
    payloads = list(payloads)
    if not payloads:
        raise ValueError("accumulate_packed needs at least one payload")
    for payload in payloads:
        _check_bytes("accumulate_packed", payload, n, fmt)
        _same_device("accumulate_packed", payloads[0], payload)
    sources = [payload.contiguous() for payload in payloads]
    device = payloads[0].device
    result = _destination(out, (packed_size(n, fmt),), torch.uint8, device)
    if any(source.data_ptr() == result.data_ptr() for source in sources[1:]):
        result = torch.empty_like(result)
    seed = _seed(seed) if rounding == "stochastic" else 0
    for_device(device.type).accumulate_packed(sources, fmt, n, kahan, rounding, seed, result)
    return _deliver(result, out)


# ---- checks ----------------------------------------------------------------------------------------------------

_FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}


def _kind(x: object) -> str:
    return f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def _source(x: Tensor) -> Tensor:
    """x as the backends take it: contiguous, float32 or float64 (the smaller types widen exactly)."""
    if not isinstance(x, Tensor) or x.dtype not in _FLOATS:
        raise TypeError(f"expected a float32, float64, float16 or bfloat16 tensor; got {_kind(x)}")
    x = x.detach()
    if x.dtype is torch.float16 or x.dtype is torch.bfloat16:
        x = x.float()
    return x.contiguous()


def _destination(
    out: Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Where the backend writes: `out` itself if it is dense, else a new tensor that `_deliver` copies."""
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if not isinstance(out, Tensor) or out.dtype is not dtype:
        raise TypeError(f"out must be a tensor of {dtype}; got {_kind(out)}")
    if out.shape != torch.Size(shape) or out.device != device:
        raise ValueError(
            f"out must have shape {list(shape)} on {device}; got {list(out.shape)} on {out.device}"
        )
    return out.detach() if out.is_contiguous() else torch.empty(shape, dtype=dtype, device=device)


def _deliver(result: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return result
    if out.data_ptr() != result.data_ptr():
        out.detach().copy_(result)
    return out


def _one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} is {value!r}; allowed: {', '.join(allowed)}")


def _same_device(what: str, a: Tensor, b: Tensor) -> None:
    if a.device != b.device:
        raise ValueError(f"{what} needs tensors on one device; got {a.device} and {b.device}")


def _check_bytes(what: str, data: Tensor, n: int, fmt: Format) -> None:
    if not isinstance(data, Tensor) or data.dtype is not torch.uint8:
        raise TypeError(f"{what} takes uint8 bytes; got {_kind(data)}")
    size = packed_size(n, fmt)
    if data.dim() != 1 or data.numel() != size:
        raise ValueError(
            f"{what}: {n} values of {fmt} are {size} bytes; got a tensor of shape {list(data.shape)}"
        )


def _seed(seed: int | None) -> int:
    """64 bits; drawn from torch's default generator where none is given."""
    if seed is None:
        return int(torch.randint(-(2**63), 2**63 - 1, ()).item())
    return int(seed)
