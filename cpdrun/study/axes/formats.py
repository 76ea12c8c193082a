"""Number formats as the report needs them: a name out of a config -> bits and order, None for an unknown name.

Nothing here imports what a record names: a run directory may come from anyone, and importing a module runs it. What
is known of a format in a module of the user's own is what the launcher wrote beside the run (format.json).
"""

import math
from functools import cache
from typing import Any

from custom_fp.formats.names import is_own
from custom_fp.formats.names import parse as parse_any
from custom_fp.formats.protocol import NumberFormat


class Recorded(str):
    """The name of a format as a config has it, with the facts that its record holds."""

    bits: int | float | None = None
    exponent_bits: int | None = None

    @classmethod
    def of(cls, name: str, facts: dict[str, Any] | None) -> "Recorded":
        """`facts`: format.json's {name, bits, exponent_bits}; those of another name are passed over."""
        made = cls(name)
        if facts is not None and facts.get("name") == name:
            made.bits, made.exponent_bits = _number(facts.get("bits")), _number(facts.get("exponent_bits"))
        return made


class Choice(Recorded):
    """The name of what is no format itself, such as `pure_fp8` of the group `precision`: it has the bits of what it
    rounds to (cpdrun.study.axes.choices)."""

    rounds: int = 0  # how many values of it name something that rounds

    @classmethod
    def made(cls, name: str, bits: float, exponent_bits: int | None, rounds: int = 0) -> "Choice":
        found = cls(name)
        found.bits, found.exponent_bits, found.rounds = bits, exponent_bits, rounds
        return found


def parse(name: object) -> NumberFormat | None:
    """The format of ours called `name`; None for one of the user's own, for a name that this version does not know,
    and for a choice, which may be called as a format is."""
    return None if isinstance(name, Choice) or is_own(name) else _parse(str(name))


@cache
def _parse(name: str) -> NumberFormat | None:
    try:
        return parse_any(name)
    except ValueError:
        return None


def same(one: object, other: object) -> bool:
    """Whether two values are one: the same format, however it is spelled, such as fp32 and e8m23, or equal."""
    if parse(one) is not None and parse(one) == parse(other):
        return True
    if isinstance(one, str) or isinstance(other, str):
        return str(one) == str(other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def bits(name: object) -> int | float | None:
    """Bits a value, the share of a block's scale included: 8.25 for mxfp8_e4m3. Of a user's own, as recorded."""
    fmt = parse(name)
    return fmt.bits if fmt is not None else name.bits if isinstance(name, Recorded) else None


def exponent_bits(name: object) -> int | None:
    """Of a floating-point format, of a user's own as recorded; else None."""
    fmt = parse(name)
    return (
        fmt.exponent_bits if fmt is not None else name.exponent_bits if isinstance(name, Recorded) else None
    )


def is_baseline(name: object) -> bool:
    """Whether this is fp32, which every other format is measured against."""
    fmt = parse(name)
    if fmt is None and isinstance(name, Recorded):
        return (name.exponent_bits, name.bits) == (8, 32)
    return fmt is not None and fmt.is_fp32


def is_floating(name: object) -> bool:
    """Whether this is a binary floating-point format that this version knows: its values reach from emin to emax."""
    fmt = parse(name)
    return fmt is not None and fmt.exponent_bits is not None


def order(name: object) -> tuple:
    """Sort key: fewest bits first; among equals the one with more exponent bits (more range) first, of choices then
    the one that rounds less."""
    size, rounds = bits(name), name.rounds if isinstance(name, Choice) else 0
    return (999, 0, 0, str(name)) if size is None else (size, -(exponent_bits(name) or 0), rounds, str(name))


def widest_first(name: object) -> tuple:
    """Sort key: most bits first, equals as in `order`."""
    size, *rest = order(name)
    return (-size, *rest)


def _number(value: object) -> int | float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) and 0 <= value <= 1024 else None
