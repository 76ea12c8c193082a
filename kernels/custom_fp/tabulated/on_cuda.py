"""Formats that are a table with the CUDA kernels of csrc/tabulated/tabulated.cuh: same functions and results as
reference.py, which does what they do not (doubles packed, encoded or added)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_fp import reference
from custom_fp.cuda import address, addresses, blocks, launch
from custom_fp.formats.tabulated import Tabulated
from custom_fp.rounding import Overflow, Rounding, Rule
from custom_fp.tabulated.tables import table_of


def _nearest(fmt: Tabulated, like: Tensor) -> np.uint64:
    return address(table_of(fmt, Rounding.NEAREST_EVEN, Overflow.INFINITY, str(like.device)))


def _table(fmt: Tabulated, rule: Rule, like: Tensor) -> np.uint64:
    return address(table_of(fmt, rule.rounding, rule.overflow, str(like.device)))


def _drawn(rule: Rule) -> tuple[Any, ...]:
    _, _, seed, offset, mask = rule.flat
    return np.uint64(seed), np.uint64(offset), np.uint32(mask)


def _shift(shift: int) -> np.int32:
    """Of a float32, whose result is the same past 400 in either direction."""
    return np.int32(max(-400, min(400, shift)))


def _wide(*tensors: Tensor) -> bool:
    return any(tensor.dtype is torch.float64 for tensor in tensors)


def quantize(x: Tensor, fmt: Tabulated, rule: Rule, out: Tensor) -> None:
    if n := x.numel():
        name = f"table_quantize_{'f64' if _wide(x) else 'f32'}{'_drawn' if rule.is_stochastic else ''}"
        to = address(x), address(out), np.int64(n), _table(fmt, rule, x)
        launch(name, x, blocks(n, 4), *to, *_drawn(rule))


def encode(x: Tensor, fmt: Tabulated, out: Tensor) -> None:
    if _wide(x):
        reference.encode(x, fmt, out)
    elif n := x.numel():
        to = address(x), address(out), np.int64(n), _nearest(fmt, x)
        launch(f"table_encode_{out.element_size()}", x, blocks(n, 4), *to)


def decode(codes: Tensor, fmt: Tabulated, out: Tensor) -> None:
    codes = codes.to(torch.int32) if codes.element_size() == 2 else codes
    if n := codes.numel():
        to = address(codes), address(out), np.int64(n), _nearest(fmt, codes)
        launch(f"table_decode_{codes.element_size()}", codes, blocks(n, 1), *to)


def pack(x: Tensor, fmt: Tabulated, shift: int, rule: Rule, out: Tensor) -> None:
    if _wide(x):
        reference.pack(x, fmt, shift, rule, out)
    elif n := x.numel():
        to = address(x), address(out), np.int64(n), _table(fmt, rule, x), _shift(shift)
        launch(f"table_pack_{_way(rule)}", x, blocks(n, 8), *to, *_drawn(rule))


def _way(rule: Rule) -> str:
    return "drawn" if rule.is_stochastic else "plain"


def unpack(data: Tensor, fmt: Tabulated, shift: int, out: Tensor) -> None:
    if n := out.numel():
        to = address(data), address(out), np.int64(n), _nearest(fmt, data), _shift(shift)
        launch("table_unpack", data, blocks(n, 8), *to)


def accumulate(tensors: Sequence[Tensor], fmt: Tabulated, kahan: bool, rule: Rule, out: Tensor) -> None:
    if _wide(*tensors):
        reference.accumulate(tensors, fmt, kahan, rule, out)
    elif n := out.numel():
        terms, _table_of_them = addresses(tensors)
        to = terms, np.int32(len(tensors)), address(out), np.int64(n), _table(fmt, rule, out)
        launch(f"table_accumulate_{_way(rule)}", out, blocks(n, 1), *to, np.int32(kahan), *_drawn(rule))


def accumulate_packed(
    payloads: Sequence[Tensor], fmt: Tabulated, n: int, kahan: bool, rule: Rule, out: Tensor
) -> None:
    if n:
        terms, _table_of_them = addresses(payloads)
        to = terms, np.int32(len(payloads)), address(out), np.int64(n)
        tables = _table(fmt, rule, out), _nearest(fmt, out)
        name = f"table_accumulate_packed_{_way(rule)}"
        launch(name, out, blocks(n, 8), *to, *tables, np.int32(kahan), *_drawn(rule))


def matmul(a: Tensor, b: Tensor, fmt: Tabulated, kahan: bool, out: Tensor) -> None:
    if not (n := out.numel()):
        return
    batch, rows, columns = out.shape
    depth = a.shape[-1]
    steps = (0 if a.shape[0] == 1 else rows * depth, 0 if b.shape[0] == 1 else depth * columns)
    sizes = map(np.int64, (batch, rows, depth, columns, *steps))
    to = address(a), address(b), address(out), *sizes, _nearest(fmt, out), np.int32(kahan)
    launch("table_matmul", out, blocks(n, 1), *to)
