"""What operators accept, and the errors that say so."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from custom_fp.format import Format
from custom_fp.names import ScaledFormat, as_scaled

ROUNDINGS = ("nearest_even", "toward_zero", "stochastic")
OVERFLOWS = ("infinity", "saturate")
_WIDE = (torch.float32, torch.float64)
_NARROW = (torch.float16, torch.bfloat16)


def kind(x: object) -> str:
    return f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def check_rule(rounding: str, overflow: str = "infinity") -> None:
    for what, value, allowed in (("rounding", rounding, ROUNDINGS), ("overflow", overflow, OVERFLOWS)):
        if value not in allowed:
            raise ValueError(f"{what} is {value!r}; allowed: {', '.join(allowed)}")


def check_offset(offset: int) -> None:
    if not 0 <= offset < 1 << 63:
        raise ValueError(f"offset is {offset}; it counts elements, from 0")


def check_float(x: object) -> None:
    if not isinstance(x, Tensor) or (x.dtype not in _WIDE and x.dtype not in _NARROW):
        raise TypeError(f"expected a float32, float64, float16 or bfloat16 tensor; got {kind(x)}")


def check_codes(x: object) -> None:
    if not isinstance(x, Tensor) or x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise TypeError(f"decode takes integer codes; got {kind(x)}")


def check_terms(what: str, tensors: Sequence[Tensor]) -> None:
    """At least one, all on one device and of one shape."""
    if not tensors:
        raise ValueError(f"{what} needs at least one tensor")
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.device != first.device:
            raise ValueError(f"{what} needs tensors on one device; got {first.device} and {tensor.device}")
        if tensor.shape != first.shape:
            raise ValueError(
                f"{what} needs tensors of one shape; got {list(first.shape)} and {list(tensor.shape)}"
            )


def check_bytes(what: str, data: object, n: int, fmt: Format) -> None:
    if not isinstance(data, Tensor) or data.dtype is not torch.uint8:
        raise TypeError(f"{what} takes uint8 bytes; got {kind(data)}")
    size = packed_size(n, fmt)
    if data.dim() != 1 or data.numel() != size:
        raise ValueError(
            f"{what}: {n} values of {fmt} are {size} bytes; got a tensor of shape {list(data.shape)}"
        )


def check_matrices(a: object, b: object) -> None:
    for x in (a, b):
        if not isinstance(x, Tensor) or x.dtype not in (torch.float32, *_NARROW):
            raise TypeError(f"matmul takes float32, float16 or bfloat16 tensors; got {kind(x)}")
        if x.dim() < 2:
            raise ValueError(f"matmul takes matrices or batches of them; got shape {list(x.shape)}")
    if a.device != b.device:
        raise ValueError(f"matmul needs tensors on one device; got {a.device} and {b.device}")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: {list(a.shape)} and {list(b.shape)} do not fit together")


def packed_size(n: int, fmt: Format | ScaledFormat | str) -> int:
    """Bytes of n packed values: ceil(n / 8) * k, and before them the scales of a format that has them."""
    with_scales = as_scaled(fmt)
    return -(-n // 8) * Format.parse(fmt).bits if with_scales is None else with_scales.packed_size(n)


def code_dtype(fmt: Format) -> torch.dtype:
    """uint8 up to 8 bits, int32 up to 31, int64 for 32: codes are never negative."""
    if fmt.bits <= 8:
        return torch.uint8
    return torch.int32 if fmt.bits < 32 else torch.int64


def as_source(x: Tensor) -> Tensor:
    """x as the backends take it: contiguous, float32 or float64 (the smaller types widen exactly)."""
    if x.dtype in _NARROW:
        x = x.float()
    return x if x.is_contiguous() else x.contiguous()


def destination(out: Tensor | None, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Where the backend writes: `out` itself if it is dense, else a new tensor, for `deliver` to copy."""
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if not isinstance(out, Tensor) or out.dtype is not dtype:
        raise TypeError(f"out must be a tensor of {dtype}; got {kind(out)}")
    if out.shape != torch.Size(shape) or out.device != device:
        raise ValueError(
            f"out must have shape {list(shape)} on {device}; got {list(out.shape)} on {out.device}"
        )
    return out if out.is_contiguous() else torch.empty(shape, dtype=dtype, device=device)


def deliver(result: Tensor, out: Tensor | None) -> Tensor:
    if out is None or out is result:
        return result
    with torch.no_grad():
        out.copy_(result)
    return out


def draw_seed(seed: int | None) -> int:
    """64 bits; drawn from torch's default generator where none is given."""
    return int(torch.randint(-(2**63), 2**63 - 1, ()).item()) if seed is None else operator.index(seed)
