"""The compiled CPU backend of accumulators: matrix products, and sums of tensors that are rounded once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, get_num_threads

from custom_fp import _native  # type: ignore[attr-defined]  # the compiled module has no type stub
from custom_fp.accumulator import Accumulator
from custom_fp.accumulators.encodings import Operands, multiply
from custom_fp.accumulators.rounding_tables import tables
from custom_fp.native import pack_product
from custom_fp.rounding import Rule


def matmul(a: Tensor, b: Tensor, how: Accumulator, rule: Rule, out: Tensor) -> None:
    multiply(product, a, b, how, rule, out)


def product(operands: Operands, how: Accumulator, rule: Rule, out: Tensor) -> None:
    a, b, *scales = operands
    mode, overflow, seed, _, mask = rule.flat
    of_scales, of_tables = (
        [0 if x is None else x.data_ptr() for x in tensors] for tensors in (scales, tables(how, rule, out))
    )
    summing = *of_tables, *how.flat, mode, overflow, seed, mask
    _native.dot(pack_product(a, b, out), *of_scales, summing, get_num_threads())


def fused_sum(tensors: Sequence[Tensor], width: int | None, emin: int, out: Tensor) -> None:
    terms = [tensor.data_ptr() for tensor in tensors]
    aligned = -1 if width is None else width
    _native.fused_sum(terms, out.data_ptr(), out.numel(), aligned, emin, get_num_threads())
