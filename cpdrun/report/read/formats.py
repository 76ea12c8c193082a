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


@cache
def parse(name: object) -> NumberFormat | None:
    """The format of ours called `name`; None for one of the user's own, and for a name that this version does not
    know."""
    if is_own(name):
        return None
    try:
        return parse_any(str(name))
    except ValueError:
        return None


def bits(name: object) -> int | float | None:
    """Bits a value, the share of a block's scale included: 8.25 for mxfp8_e4m3. Of a user's own, as recorded."""
    fmt = parse(name)
    return fmt.bits if fmt is not None else name.bits if isinstance(name, Recorded) else None


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
    """Sort key: fewest bits first; among equals the one with more exponent bits (more range) first."""
    fmt, size = parse(name), bits(name)
    if size is None:
        return (999, 0, str(name))
    exponent_bits = name.exponent_bits if fmt is None else fmt.exponent_bits
    return (size, -(exponent_bits or 0), str(name))


def _number(value: object) -> int | float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) and 0 <= value <= 1024 else None
