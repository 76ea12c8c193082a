"""The CUDA backend of accumulators: matrix products, and sums of tensors that are rounded once.

Each thread computes one result at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.accumulators.encodings import Operands, multiply
from custom_fp.accumulators.rounding_tables import tables
from custom_fp.cuda import address, addresses, blocks, launch, mode_name, product_args, rule_args
from custom_fp.rounding import Rule

_TYPES = (*(np.uint32,) * 3, *(np.int32,) * 6, np.int64, *(np.int32,) * 6)  # the types of Accumulator.flat


def matmul(a: Tensor, b: Tensor, how: Accumulator, rule: Rule, out: Tensor) -> None:
    multiply(product, a, b, how, rule, out)


def product(operands: Operands, how: Accumulator, rule: Rule, out: Tensor) -> None:
    a, b, *scales = operands
    if out.numel() == 0:
        return
    rounding, seed, _, mask = rule_args(rule)
    launch(
        f"dot_{mode_name(rule)}",
        out,
        blocks(out.numel(), 1),
        *product_args(a, b, out),
        *(np.uint64(0) if x is None else address(x) for x in (*scales, *tables(how, rule, out))),
        *(kind(value) for kind, value in zip(_TYPES, how.flat, strict=True)),
        *(rounding, seed, mask),
    )


def fused_sum(tensors: Sequence[Tensor], width: int | None, emin: int, out: Tensor) -> None:
    if n := out.numel():
        terms, _table = addresses(tensors)
        aligned = np.int32(-1 if width is None else width)
        args = terms, np.int32(len(tensors)), address(out), np.int64(n), aligned, np.int32(emin)
        launch("fused_sum", out, blocks(n, 1), *args)
