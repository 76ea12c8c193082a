"""The compiled CPU backend of matrix products by an Accumulator: the results of reference.py, bit for bit."""

from __future__ import annotations

from torch import Tensor, get_num_threads

from custom_fp import _accumulators
from custom_fp.accumulator import Accumulator
from custom_fp.rule import Rule


def matmul(a: Tensor, b: Tensor, how: Accumulator, rule: Rule, out: Tensor) -> None:
    batch, rows, columns = out.shape
    mode, overflow, seed, _, mask = rule.flat
    addresses = a.data_ptr(), b.data_ptr(), out.data_ptr()
    sizes = batch, rows, a.shape[-1], columns, a.shape[0] == 1, b.shape[0] == 1
    _accumulators.dot(*addresses, *sizes, *how.flat, mode, overflow, seed, mask, get_num_threads())
