"""The compiled CPU backend of formats that are a table: same functions and results as reference.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, get_num_threads

from custom_fp import _tabulated
from custom_fp.formats.tabulated import Tabulated
from custom_fp.reference import clamp_shift
from custom_fp.rounding import Overflow, Rounding, Rule
from custom_fp.tabulated.tables import table_of


def _nearest(fmt: Tabulated) -> int:
    return table_of(fmt, Rounding.NEAREST_EVEN, Overflow.INFINITY, "cpu").data_ptr()


def _rule(fmt: Tabulated, rule: Rule) -> tuple[int, ...]:
    """Tables, seed, offset, mask. Their memory stays where it is: tables are kept."""
    _, _, seed, offset, mask = rule.flat
    table = table_of(fmt, rule.rounding, rule.overflow, "cpu")
    return table.data_ptr(), _nearest(fmt), seed, offset, mask


def quantize(x: Tensor, fmt: Tabulated, rule: Rule, out: Tensor) -> None:
    is_wide, size, threads = x.dtype is torch.float64, x.numel(), get_num_threads()
    _tabulated.quantize(x.data_ptr(), is_wide, out.data_ptr(), size, *_rule(fmt, rule), threads)


def accumulate(tensors: Sequence[Tensor], fmt: Tabulated, kahan: bool, rule: Rule, out: Tensor) -> None:
    terms = [tensor.data_ptr() for tensor in tensors], [tensor.dtype is torch.float64 for tensor in tensors]
    _tabulated.accumulate(*terms, out.data_ptr(), out.numel(), kahan, *_rule(fmt, rule), get_num_threads())


def encode(x: Tensor, fmt: Tabulated, out: Tensor) -> None:
    to = out.data_ptr(), out.element_size(), x.numel()
    _tabulated.encode(x.data_ptr(), x.dtype is torch.float64, *to, _nearest(fmt), get_num_threads())


def decode(codes: Tensor, fmt: Tabulated, out: Tensor) -> None:
    codes = codes.to(torch.int32) if codes.element_size() == 2 else codes
    to = out.data_ptr(), out.numel()
    _tabulated.decode(codes.data_ptr(), codes.element_size(), *to, _nearest(fmt), get_num_threads())


def pack(x: Tensor, fmt: Tabulated, shift: int, rule: Rule, out: Tensor) -> None:
    to = out.data_ptr(), x.numel(), clamp_shift(shift)
    _tabulated.pack(x.data_ptr(), x.dtype is torch.float64, *to, *_rule(fmt, rule), get_num_threads())


def unpack(data: Tensor, fmt: Tabulated, shift: int, out: Tensor) -> None:
    to = out.data_ptr(), out.numel(), clamp_shift(shift)
    _tabulated.unpack(data.data_ptr(), *to, _nearest(fmt), get_num_threads())


def accumulate_packed(
    payloads: Sequence[Tensor], fmt: Tabulated, n: int, kahan: bool, rule: Rule, out: Tensor
) -> None:
    terms = [payload.data_ptr() for payload in payloads]
    _tabulated.accumulate_packed(terms, out.data_ptr(), n, kahan, *_rule(fmt, rule), get_num_threads())


def matmul(a: Tensor, b: Tensor, fmt: Tabulated, kahan: bool, out: Tensor) -> None:
    batch, rows, columns = out.shape
    sizes = batch, rows, a.shape[-1], columns, a.shape[0] == 1, b.shape[0] == 1
    addresses = a.data_ptr(), b.data_ptr(), out.data_ptr()
    _tabulated.matmul(*addresses, *sizes, kahan, _nearest(fmt), get_num_threads())
