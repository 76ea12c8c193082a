"""The compiled CPU backend: hands addresses and sizes of torch tensors to custom_fp._native.

Same functions and same results as reference.py. Threads are torch's own number, torch.get_num_threads().
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, get_num_threads

from custom_fp import _native
from custom_fp.formats.scalar import Format
from custom_fp.reference import clamp_shift
from custom_fp.rounding import Rule


def quantize(x: Tensor, fmt: Format, rule: Rule, out: Tensor) -> None:
    is_wide, size, threads = x.dtype is torch.float64, x.numel(), get_num_threads()
    _native.quantize(x.data_ptr(), is_wide, out.data_ptr(), size, fmt.spec, *rule.flat, threads)


def scale_pow2(x: Tensor, shift: int, out: Tensor) -> None:
    scale = _native.scale_f64 if x.dtype is torch.float64 else _native.scale
    scale(x.data_ptr(), out.data_ptr(), x.numel(), clamp_shift(shift), get_num_threads())


def max_exponent(x: Tensor) -> int | None:
    return _native.max_exponent(x.data_ptr(), x.dtype is torch.float64, x.numel())


def accumulate(tensors: Sequence[Tensor], fmt: Format, kahan: bool, rule: Rule, out: Tensor) -> None:
    terms = [[tensor.data_ptr() for tensor in tensors]]
    is_wide = [tensor.dtype is torch.float64 for tensor in tensors]
    if any(is_wide):
        terms.append(is_wide)
    accumulate = _native.accumulate_f64 if any(is_wide) else _native.accumulate
    mode, overflow, *drawn = rule.flat
    accumulate(
        *terms, out.data_ptr(), out.numel(), fmt.spec, mode, overflow, kahan, *drawn, get_num_threads()
    )


def encode(x: Tensor, fmt: Format, out: Tensor) -> None:
    encode = _native.encode_f64 if x.dtype is torch.float64 else _native.encode
    encode(x.data_ptr(), out.data_ptr(), out.element_size(), x.numel(), fmt.spec, get_num_threads())


def decode(codes: Tensor, fmt: Format, out: Tensor) -> None:
    size = codes.element_size()
    if size == 2:
        codes, size = codes.to(torch.int32), 4
    _native.decode(codes.data_ptr(), size, out.data_ptr(), out.numel(), fmt.spec, get_num_threads())


def pack(x: Tensor, fmt: Format, shift: int, rule: Rule, out: Tensor) -> None:
    pack = _native.pack_f64 if x.dtype is torch.float64 else _native.pack
    addresses = x.data_ptr(), out.data_ptr()
    pack(*addresses, x.numel(), fmt.spec, clamp_shift(shift), *rule.flat, get_num_threads())


def unpack(data: Tensor, fmt: Format, shift: int, out: Tensor) -> None:
    _native.unpack(
        data.data_ptr(), out.data_ptr(), out.numel(), fmt.spec, clamp_shift(shift), get_num_threads()
    )


def accumulate_packed(
    payloads: Sequence[Tensor], fmt: Format, n: int, kahan: bool, rule: Rule, out: Tensor
) -> None:
    addresses = [payload.data_ptr() for payload in payloads]
    mode, overflow, *drawn = rule.flat
    _native.accumulate_packed(
        addresses, out.data_ptr(), n, fmt.spec, mode, overflow, kahan, *drawn, get_num_threads()
    )


def matmul(a: Tensor, b: Tensor, fmt: Format, kahan: bool, out: Tensor) -> None:
    batch, rows, columns = out.shape
    _native.matmul(
        a.data_ptr(),
        b.data_ptr(),
        out.data_ptr(),
        batch,
        rows,
        a.shape[-1],
        columns,
        a.shape[0] == 1,
        b.shape[0] == 1,
        fmt.spec,
        kahan,
        get_num_threads(),
    )


def hadamard(x: Tensor, size: int, seed: int | None, inverse: bool, out: Tensor) -> None:
    outer, length, inner = x.shape
    signs = seed is not None, (seed or 0) & (1 << 64) - 1
    addresses = x.data_ptr(), out.data_ptr()
    _native.hadamard(*addresses, outer, length, inner, size, inverse, *signs, get_num_threads())


def count_binades(x: Tensor, rounded: Tensor) -> tuple[Tensor, Tensor]:
    """Of a contiguous float32 tensor of at most 2^22 elements: how many have each exponent field, (256,) int64, zeros
    not counted; and of each field of 1 .. 254 with elements a row of exact integer sums, (K, 102) int64. `rounded`:
    what nearest rounding makes of the cells of a binade; what sums there are: csrc/binades.h."""
    counts = torch.empty(256, dtype=torch.int64)
    rows = torch.empty(254, 102, dtype=torch.int64)
    _native.count_binades(x.data_ptr(), x.numel(), rounded.data_ptr(), counts.data_ptr(), rows.data_ptr())
    return counts, rows[: int((counts[1:255] > 0).sum())]
