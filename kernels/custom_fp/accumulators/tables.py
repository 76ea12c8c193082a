"""The tables that kernels round by where an accumulator's formats are no binary floating point."""

from __future__ import annotations

from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.formats.tabulated import Tabulated
from custom_fp.rounding import Rule
from custom_fp.tabulated.tables import table_of

NEAREST = Rule()


def tables(how: Accumulator, rule: Rule, like: Tensor) -> list[Tensor | None]:
    """Of sums, products and the total, on a tensor's device; None: there is none. They are kept, and stay where they
    are."""
    rules = rule, rule, NEAREST
    return [
        table_of(fmt, by.rounding, by.overflow, str(like.device)) if isinstance(fmt, Tabulated) else None
        for fmt, by in zip(how.roundings, rules, strict=True)
    ]
