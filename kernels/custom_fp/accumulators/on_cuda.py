"""The CUDA backend of matrix products by an Accumulator and of sums at once, a result a thread: those of reference.py,
bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.accumulators.encodings import Operands, multiply
from custom_fp.accumulators.tables import tables
from custom_fp.cuda import address, addresses, blocks, launch, told, way
from custom_fp.rounding import Rule

_TYPES = (*(np.uint32,) * 3, *(np.int32,) * 6, np.int64, *(np.int32,) * 6)  # of Accumulator.flat


def matmul(a: Tensor, b: Tensor, how: Accumulator, rule: Rule, out: Tensor) -> None:
    multiply(product, a, b, how, rule, out)


def product(operands: Operands, how: Accumulator, rule: Rule, out: Tensor) -> None:
    a, b, *scales = operands
    batch, rows, columns = out.shape
    depth = a.shape[-1]
    if out.numel() == 0:
        return
    steps = 0 if a.shape[0] == 1 else rows * depth, 0 if b.shape[0] == 1 else depth * columns
    told_how, seed, _, mask = told(rule)
    launch(
        f"dot_{way(rule)}",
        out,
        blocks(out.numel(), 1),
        *map(address, (a, b, out)),
        *map(np.int64, (batch, rows, depth, columns, *steps)),
        *(np.uint64(0) if x is None else address(x) for x in (*scales, *tables(how, rule, out))),
        *(kind(value) for kind, value in zip(_TYPES, how.flat, strict=True)),
        *(told_how, seed, mask),
    )


def add_at_once(tensors: Sequence[Tensor], width: int | None, emin: int, out: Tensor) -> None:
    if n := out.numel():
        terms, _table = addresses(tensors)
        aligned = np.int32(-1 if width is None else width)
        to = terms, np.int32(len(tensors)), address(out), np.int64(n)
        launch("add_at_once", out, blocks(n, 1), *to, aligned, np.int32(emin))
