"""Sum tensors with a single rounding, as an adder with N inputs or a network switch does.

`accumulate` uses this with `order="exact"` and `order="aligned"`. A backend returns the sum as float64, rounded to odd
(`fused_sum` in reference.py). Apart from the bits that the width of an aligned sum discards, it is exact. Then
`quantize` rounds it to the format. Elements are processed in parts to bound the memory for the float64 sums.
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
_TERMS_PER_PART = 1 << 22


def check_order(order: object, width: object, kahan: bool, terms: int) -> None:
    """Check the arguments of `accumulate`.

    Args:
        order: One of ORDERS.
        width: The number of bits that order "aligned" keeps; None for other orders.
        kahan: Whether to use Kahan's compensated addition, which only order "sequential" has.
        terms: The number of tensors.

    Raises:
        ValueError: An argument is not allowed, or arguments do not go together.
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; allowed: {', '.join(ORDERS)}")
    if kahan and order != SEQUENTIAL:
        raise ValueError(f"order={order} rounds once, so there is no error to compensate; leave kahan out")
    if order != ALIGNED:
        if width is not None:
            raise ValueError(f"width={width} goes with order=aligned, not {order}")
        return
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= MOST_DIGITS:
        raise ValueError(f"width is {width!r}; order=aligned needs one of 1..{MOST_DIGITS}")
    if terms > 1 << 52 - width:
        raise ValueError(
            f"order=aligned with width={width} adds up to {1 << 52 - width} tensors; got {terms}"
        )


def check_narrow(tensors: Sequence[Tensor]) -> None:
    """Raise TypeError for float64 tensors: the exact sum has too few bits for them."""
    if any(tensor.dtype is torch.float64 for tensor in tensors):
        raise TypeError("order=exact and order=aligned add float32, float16 or bfloat16 tensors; got float64")


def accumulate(
    tensors: Sequence[Tensor], fmt: NumberFormat, width: int | None, rule: Rule, out: Tensor
) -> None:
    """Add tensors and round the sums to the format once. width: None for exact sums, else that of aligned sums."""
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
    """Do the same for tensors of n elements as packed codes. The sums are packed, too."""
    unpack, pack = (function(name, fmt.backends, out.device.type) for name in ("unpack", "pack"))
    for start, stop in _parts(n, len(payloads)):
        data = slice(start // 8 * fmt.bits, -(-stop // 8) * fmt.bits)
        terms = torch.empty(len(payloads) + 1, stop - start, device=out.device)
        for payload, term in zip(payloads, terms, strict=False):
            unpack(payload[data], fmt, 0, term)
        accumulate(terms[:-1].unbind(), fmt, width, replace(rule, offset=rule.offset + start), terms[-1])
        pack(terms[-1], fmt, 0, Rule(), out[data])


def _parts(n: int, terms: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of n elements. Each starts at a whole byte of packed codes of any format."""
    step = max(1 << 12, _TERMS_PER_PART // terms // 128 * 128)
    return ((start, min(n, start + step)) for start in range(0, n, step))


def _emin(fmt: NumberFormat) -> int:
    """Return the smallest exponent by which a value is aligned: the format's emin, or that of float32 for a table."""
    return fmt.emin if isinstance(fmt, Format) else Format(8, 23).emin
