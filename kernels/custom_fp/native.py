"""The compiled CPU backend for formats without scales. It calls custom_fp._native with addresses and sizes of tensors.

The functions have the same arguments and results as those in reference.py. They use torch.get_num_threads() threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, get_num_threads

from custom_fp import _native  # type: ignore[attr-defined]  # the compiled module has no type stub
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.reference import clamp_shift
from custom_fp.rounding import Overflow, Rounding, Rule
from custom_fp.tabulated.step_arrays import table_of

NEAREST = Rule()


def quantize(x: Tensor, fmt: Format | Tabulated, rule: Rule, out: Tensor) -> None:
    to = out.data_ptr(), x.numel(), pack_rule(fmt, rule)
    _native.quantize(x.data_ptr(), _is_wide(x), *to, get_num_threads())


def scale_pow2(x: Tensor, shift: int, out: Tensor) -> None:
    sizes = out.data_ptr(), x.numel(), clamp_shift(shift)
    _native.scale(x.data_ptr(), _is_wide(x), *sizes, get_num_threads())


def max_exponent(x: Tensor) -> int | None:
    return _native.max_exponent(x.data_ptr(), _is_wide(x), x.numel())


def accumulate(
    tensors: Sequence[Tensor], fmt: Format | Tabulated, kahan: bool, rule: Rule, out: Tensor
) -> None:
    addresses, is_wide = [tensor.data_ptr() for tensor in tensors], [_is_wide(tensor) for tensor in tensors]
    terms = addresses, is_wide if any(is_wide) else []
    _native.accumulate(*terms, out.data_ptr(), out.numel(), pack_rule(fmt, rule), kahan, get_num_threads())


def encode(x: Tensor, fmt: Format | Tabulated, out: Tensor) -> None:
    to = out.data_ptr(), out.element_size(), x.numel(), pack_rule(fmt)
    _native.encode(x.data_ptr(), _is_wide(x), *to, get_num_threads())


def decode(codes: Tensor, fmt: Format | Tabulated, out: Tensor) -> None:
    codes = codes.to(torch.int32) if codes.element_size() == 2 else codes
    to = out.data_ptr(), out.numel(), pack_rule(fmt)
    _native.decode(codes.data_ptr(), codes.element_size(), *to, get_num_threads())


def pack(x: Tensor, fmt: Format | Tabulated, shift: int, rule: Rule, out: Tensor) -> None:
    to = out.data_ptr(), x.numel(), pack_rule(fmt, rule), clamp_shift(shift)
    _native.pack(x.data_ptr(), _is_wide(x), *to, get_num_threads())


def unpack(data: Tensor, fmt: Format | Tabulated, shift: int, out: Tensor) -> None:
    to = out.data_ptr(), out.numel(), pack_rule(fmt), clamp_shift(shift)
    _native.unpack(data.data_ptr(), *to, get_num_threads())


def accumulate_packed(
    payloads: Sequence[Tensor], fmt: Format | Tabulated, n: int, kahan: bool, rule: Rule, out: Tensor
) -> None:
    terms = [payload.data_ptr() for payload in payloads]
    _native.accumulate_packed(terms, out.data_ptr(), n, pack_rule(fmt, rule), kahan, get_num_threads())


def matmul(a: Tensor, b: Tensor, fmt: Format | Tabulated, kahan: bool, out: Tensor) -> None:
    _native.matmul(pack_product(a, b, out), pack_rule(fmt), kahan, get_num_threads())


def hadamard(x: Tensor, size: int, seed: int | None, inverse: bool, out: Tensor) -> None:
    outer, length, inner = x.shape
    signs = seed is not None, (seed or 0) & (1 << 64) - 1
    addresses = x.data_ptr(), out.data_ptr()
    _native.hadamard(*addresses, outer, length, inner, size, inverse, *signs, get_num_threads())


def count_binades(x: Tensor, rounded: Tensor) -> tuple[Tensor, Tensor]:
    """Count the exponents of a tensor and sum the values of each binade exactly, as csrc/binades.h explains.

    Args:
        x: A contiguous float32 tensor of at most 2^22 elements.
        rounded: The results of rounding the cells of a binade, `q` in csrc/binades.h.

    Returns:
        Two int64 tensors. The first has shape (256,) and counts the elements with each exponent field, except zeros.
        The second has shape (K, 102) and contains a row of exact integer sums for each of the K exponent fields from 1
        to 254 that occur.
    """
    counts = torch.empty(256, dtype=torch.int64)
    rows = torch.empty(254, 102, dtype=torch.int64)
    _native.count_binades(x.data_ptr(), x.numel(), rounded.data_ptr(), counts.data_ptr(), rows.data_ptr())
    return counts, rows[: int((counts[1:255] > 0).sum())]


def pack_rule(fmt: Format | Tabulated, rule: Rule = NEAREST) -> tuple[int, ...]:
    """Return a format and a rule as integers: the members of `Rule` in csrc/cpu/kernels.h, in order."""
    if isinstance(fmt, Format):
        return fmt.spec, *rule.flat, 0, 0
    table = table_of(fmt, rule.rounding, rule.overflow, "cpu")
    nearest = table_of(fmt, Rounding.NEAREST_EVEN, Overflow.INFINITY, "cpu")
    return (
        0,
        *rule.flat,
        table.data_ptr(),
        nearest.data_ptr(),
    )  # table_of caches the tables, so these stay valid


def pack_product(a: Tensor, b: Tensor, out: Tensor) -> tuple[int, ...]:
    """Return a batch of matrix products as integers: the members of `Product` in csrc/bindings.h, in order."""
    batch, rows, columns = out.shape
    sizes = batch, rows, a.shape[-1], columns, a.shape[0] == 1, b.shape[0] == 1
    return a.data_ptr(), b.data_ptr(), out.data_ptr(), *sizes


def _is_wide(x: Tensor) -> bool:
    return x.dtype is torch.float64
