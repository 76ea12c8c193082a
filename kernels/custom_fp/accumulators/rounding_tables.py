"""The tables with which kernels round if the formats of an accumulator are tables of values."""

from __future__ import annotations

from torch import Tensor

from custom_fp.accumulator import Accumulator
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.rounding import Rule
from custom_fp.tabulated.step_arrays import table_of

NEAREST = Rule()


def tables(how: Accumulator, rule: Rule, like: Tensor) -> list[Tensor | None]:
    """Return the tables for sums, products and the total, on the device of `like`.

    An entry is None if its format needs no table. The tables are cached, so their addresses stay valid.
    """
    rules = rule, rule, NEAREST
    return [
        table_of(fmt, by.rounding, by.overflow, str(like.device)) if isinstance(fmt, Tabulated) else None
        for fmt, by in zip(how.roundings, rules, strict=True)
    ]
