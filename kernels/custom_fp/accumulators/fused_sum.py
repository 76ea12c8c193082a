"""Sum tensors with a single rounding, as an adder with N inputs or a network switch does.

`accumulate` uses this module for `order="exact"` and `order="aligned"`. A backend returns the sum as float64, rounded
to odd (`fused_sum` in reference.py), and `quantize` then rounds it to the format. Apart from the bits that an aligned
sum truncates, the sum is exact. Elements are processed in parts to limit the memory for the float64 sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from custom_fp.accumulator import MOST_DIGITS, Accumulator
from custom_fp.backends import function
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rule

SEQUENTIAL, EXACT, ALIGNED = ORDERS = ("sequential", "exact", "aligned")
_TERMS_PER_PART = 1 << 22  # the number of terms that are processed together


def check_order(order: object, width: object, kahan: bool, terms: int) -> None:
    """Check the arguments of `accumulate`.

    Args:
        order: One of ORDERS.
        width: The number of bits that order "aligned" keeps. It must be None for other orders.
        kahan: Whether to use Kahan's compensated addition, which requires order "sequential".
        terms: The number of tensors.

    Raises:
        ValueError: An argument is not allowed, or arguments cannot be combined.
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; allowed: {', '.join(ORDERS)}")
    if kahan and order != SEQUENTIAL:
        raise ValueError(f"order={order} rounds once, so there is no error to compensate; remove kahan")
    if order != ALIGNED:
        if width is not None:
            raise ValueError(f"width={width} requires order=aligned, not order={order}")
        return
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= MOST_DIGITS:
        raise ValueError(f"width is {width!r}; order=aligned requires a width from 1 to {MOST_DIGITS}")
    if terms > 1 << 52 - width:
        raise ValueError(
            f"order=aligned with width={width} can add at most {1 << 52 - width} tensors; got {terms}"
        )


def check_narrow(tensors: Sequence[Tensor]) -> None:
    """Raise TypeError if a tensor is float64, because the exact sum has too few bits for float64 values."""
    if any(tensor.dtype is torch.float64 for tensor in tensors):
        raise TypeError(
            "order=exact and order=aligned require float32, float16 or bfloat16 tensors; got float64"
        )


def accumulate(
    tensors: Sequence[Tensor], fmt: NumberFormat, width: int | None, rule: Rule, out: Tensor
) -> None:
    """Add tensors and round each sum to the format once. `width` is None for exact sums."""
    device, terms_n, out_n = out.device.type, [x.view(-1) for x in tensors], out.view(-1)
    add = function("fused_sum", Accumulator.backends, device)
    quantize = function("quantize", fmt.backends, device)
    for start, stop in _parts(out.numel(), len(tensors)):
        total = torch.empty(stop - start, dtype=torch.float64, device=out.device)
        add([x[start:stop] for x in terms_n], width, _emin(fmt), total)
        quantize(total, fmt, replace(rule, offset=rule.offset + start), out_n[start:stop])


def accumulate_packed(
    payloads: Sequence[Tensor], fmt: NumberFormat, n: int, width: int | None, rule: Rule, out: Tensor
) -> None:
    """Add packed tensors of n elements, round each sum to the format once, and pack the sums."""
    unpack, pack = (function(name, fmt.backends, out.device.type) for name in ("unpack", "pack"))
    for start, stop in _parts(n, len(payloads)):
        data = slice(start // 8 * fmt.bits, -(-stop // 8) * fmt.bits)
        terms = torch.empty(len(payloads) + 1, stop - start, device=out.device)
        for payload, term in zip(payloads, terms, strict=False):
            unpack(payload[data], fmt, 0, term)
        accumulate(terms[:-1].unbind(), fmt, width, replace(rule, offset=rule.offset + start), terms[-1])
        pack(terms[-1], fmt, 0, Rule(), out[data])


def _parts(n: int, terms: int) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of parts of n elements. Each part starts at a whole byte of the packed codes."""
    step = max(1 << 12, _TERMS_PER_PART // terms // 128 * 128)
    return ((start, min(n, start + step)) for start in range(0, n, step))


def _emin(fmt: NumberFormat) -> int:
    """Return the smallest exponent by which values are aligned: the format's emin, or float32's emin for a table."""
    return fmt.emin if isinstance(fmt, Format) else Format(8, 23).emin
