"""The compiled CPU backend of matrix products by an Accumulator, and of sums at once: the results of reference.py, bit
for bit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, get_num_threads

from custom_fp import _accumulators
from custom_fp.accumulator import Accumulator
from custom_fp.accumulators.encodings import Operands, multiply
from custom_fp.accumulators.tables import tables
from custom_fp.rounding import Rule


def matmul(a: Tensor, b: Tensor, how: Accumulator, rule: Rule, out: Tensor) -> None:
    multiply(product, a, b, how, rule, out)


def product(operands: Operands, how: Accumulator, rule: Rule, out: Tensor) -> None:
    a, b, *scales = operands
    batch, rows, columns = out.shape
    mode, overflow, seed, _, mask = rule.flat
    addresses = a.data_ptr(), b.data_ptr(), out.data_ptr()
    sizes = batch, rows, a.shape[-1], columns, a.shape[0] == 1, b.shape[0] == 1
    others = [0 if x is None else x.data_ptr() for x in (*scales, *tables(how, rule, out))]
    _accumulators.dot(*addresses, *sizes, *others, *how.flat, mode, overflow, seed, mask, get_num_threads())


def add_at_once(tensors: Sequence[Tensor], width: int | None, emin: int, out: Tensor) -> None:
    terms = [tensor.data_ptr() for tensor in tensors]
    aligned = -1 if width is None else width
    _accumulators.add_at_once(terms, out.data_ptr(), out.numel(), aligned, emin, get_num_threads())
