"""Elements under scales, in PyTorch: step 5 of formats/scaled.py, and their codes.

Values are float32 in blocks, (B, K). Every element has at most 8 bits, so its codes are read and written by tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from custom_fp.formats.elements import Element, Integer, ValueTable
from custom_fp.reference import round_to_format
from custom_fp.rounding import Overflow, Rule


@dataclass(frozen=True)
class ElementTables:
    """The values of an element on a device.

    Attributes:
        by_code: float32 (256,), the value of each byte, of which the low `code_bits` bits count. For a `ValueTable` all
            bits count, and bytes that are no code are NaN.
        ascending: float32 (n,), the distinct values.
        codes: uint8 (n,), their codes. If several codes have a value, the first one.
        minus_zero: The code of -0, or of 0 if there is no -0.
    """

    by_code: Tensor
    ascending: Tensor
    codes: Tensor
    minus_zero: int


@cache
def tables_of(element: Element, device: str) -> ElementTables:
    """Return the tables of an element on a device."""
    values = list(element.code_values() or ())
    first: dict[float, int] = {}
    for code, value in enumerate(values):
        if math.isfinite(value):
            first.setdefault(value, code)
    order = sorted(first)
    minus = (code for code, value in enumerate(values) if value == 0 and math.copysign(1.0, value) < 0)
    if isinstance(element, ValueTable):
        values += [math.nan] * (256 - len(values))
    return ElementTables(
        torch.tensor(values * (256 // len(values)), dtype=torch.float32, device=device),
        torch.tensor(order, dtype=torch.float32, device=device),
        torch.tensor([first[value] for value in order], dtype=torch.uint8, device=device),
        next(minus, first.get(0.0, 0)),
    )


@cache
def _thresholds(table: ValueTable, device: str) -> Tensor:
    return torch.tensor(table.thresholds, dtype=torch.float32, device=device)


def round_elements(element: Element, q: Tensor, rule: Rule, random: Tensor | None) -> Tensor:
    """Round float32 values, which lie within the least and the largest element.

    Args:
        element: The element.
        q: The values.
        rule: The rounding mode.
        random: 32 random bits for each value (int64), if the rounding is stochastic.
    """
    if isinstance(element, ValueTable):
        nearest = torch.bucketize(q, _thresholds(element, str(q.device)), out_int32=True)
        return tables_of(element, str(q.device)).ascending[nearest]
    saturating = replace(rule, overflow=Overflow.SATURATE)
    if isinstance(element, Integer):
        units = round_to_format(q.double(), element.as_scalar, saturating, random)
        return units.float() + 0.0  # integers have no -0
    return round_to_format(q.double(), element, saturating, random).float()


def to_codes(element: Element, elements_BxK: Tensor, zeros_B: Tensor | None) -> Tensor:
    """Return the codes of elements as uint8. With zero points they are the elements plus the zero point."""
    if zeros_B is not None:
        return (elements_BxK + zeros_B[:, None]).to(torch.uint8)
    tables = tables_of(element, str(elements_BxK.device))
    codes = tables.codes[torch.searchsorted(tables.ascending, elements_BxK)]
    return torch.where(torch.signbit(elements_BxK) & (elements_BxK == 0), tables.minus_zero, codes)


def from_codes(element: Element, codes_BxK: Tensor, zeros_B: Tensor | None) -> Tensor:
    """Return the elements of codes as float32."""
    if zeros_B is not None:
        return codes_BxK.float() - zeros_B.float()[:, None]
    return tables_of(element, str(codes_BxK.device)).by_code[codes_BxK.to(torch.int32)]
