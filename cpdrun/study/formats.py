"""The bit widths and the order of number formats, from the names in the records of runs.

Nothing here imports a module that a record names, because a run directory may come from anyone, and importing a module
executes it. Facts about a format that the user defined come from format.json, which the launcher wrote to the run
directory.
"""

import math
from functools import cache
from typing import Any

from custom_fp.formats.names import is_own
from custom_fp.formats.names import parse as parse_any
from custom_fp.formats.protocol import NumberFormat


class Recorded(str):
    """The name of a format in a config, with the facts from the run's record.

    Attributes:
        bits: The number of bits per value; None if unknown.
        exponent_bits: The number of exponent bits; None if unknown.
    """

    bits: int | float | None = None
    exponent_bits: int | None = None

    @classmethod
    def of(cls, name: str, facts: dict[str, Any] | None) -> "Recorded":
        """Create a recorded format.

        Args:
            name: The name of the format in the config.
            facts: The content of format.json, {name, bits, exponent_bits}. Facts about another name are ignored.
        """
        made = cls(name)
        if facts is not None and facts.get("name") == name:
            made.bits, exponent_bits = _number(facts.get("bits")), _number(facts.get("exponent_bits"))
            made.exponent_bits = None if exponent_bits is None else int(exponent_bits)
        return made


class Choice(Recorded):
    """The name of a choice that is not itself a format, such as `pure_fp8` of the group `precision`.

    The choice has the bits of a format that it rounds to; `cpdrun.study.choices` defines which one.

    Attributes:
        rounds: The number of the choice's settings that name a format or a bit width.
    """

    rounds: int = 0

    @classmethod
    def made(cls, name: str, bits: float, exponent_bits: int | None, rounds: int = 0) -> "Choice":
        """Create a choice with a known bit width."""
        found = cls(name)
        found.bits, found.exponent_bits, found.rounds = bits, exponent_bits, rounds
        return found


def parse(name: object) -> NumberFormat | None:
    """Return the built-in format with this name.

    Returns:
        None for a format that the user defined, for a name that this version does not know, and for a choice, which may
        have the same name as a format.
    """
    return None if isinstance(name, Choice) or is_own(name) else _parse(str(name))


@cache
def _parse(name: str) -> NumberFormat | None:
    try:
        return parse_any(name)
    except ValueError:
        return None


def same(one: object, other: object) -> bool:
    """Return whether two values are equal or are two spellings of the same format, such as fp32 and e8m23."""
    if parse(one) is not None and parse(one) == parse(other):
        return True
    if isinstance(one, str) or isinstance(other, str):
        return str(one) == str(other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def bits(name: object) -> int | float | None:
    """Return the bits per value of a format, including its share of the block's scale: 8.25 for mxfp8_e4m3.

    For a format that the user defined, this is the recorded number. None if it is unknown.
    """
    fmt = parse(name)
    return fmt.bits if fmt is not None else name.bits if isinstance(name, Recorded) else None


def exponent_bits(name: object) -> int | None:
    """Return the number of exponent bits of a floating-point format; None for other formats.

    For a format that the user defined, this is the recorded number.
    """
    fmt = parse(name)
    return (
        fmt.exponent_bits if fmt is not None else name.exponent_bits if isinstance(name, Recorded) else None
    )


def is_baseline(name: object) -> bool:
    """Return whether a value is fp32 or rounds nothing, which makes it the default baseline."""
    fmt = parse(name)
    if fmt is None and isinstance(name, Recorded):
        return (name.exponent_bits, name.bits) == (8, 32)
    return fmt is not None and fmt.is_fp32


def is_floating(name: object) -> bool:
    """Return whether a name is a binary floating-point format that this version knows, so that it has emin and emax."""
    fmt = parse(name)
    return fmt is not None and fmt.exponent_bits is not None


def order(name: object) -> tuple:
    """Return the sort key that puts fewest bits first.

    Among equally many bits, more exponent bits (more range) come first, and then choices that round fewer values.
    Formats of unknown bit width come last.
    """
    size, rounds = bits(name), name.rounds if isinstance(name, Choice) else 0
    return (999, 0, 0, str(name)) if size is None else (size, -(exponent_bits(name) or 0), rounds, str(name))


def widest_first(name: object) -> tuple:
    """Return the sort key that puts most bits first and orders equally wide formats as `order` does."""
    size, *rest = order(name)
    return (-size, *rest)


def _number(value: Any) -> int | float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) and 0 <= value <= 1024 else None
