"""Look up bit widths of the formats in run records, and sort formats by them.

A record may name a Python module that defines a format of the user's own. This module never imports it, because a run
directory may come from anyone. The bit widths of such formats come from format.json, which the launcher wrote.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from custom_fp.formats.names import is_own
from custom_fp.formats.names import parse as parse_any
from custom_fp.formats.protocol import NumberFormat

from cpdrun.stats.means import is_number


class Recorded(str):
    """A format's name in a config, with the bit widths from the run's record.

    Attributes:
        bits: The number of bits per value. None if unknown.
        exponent_bits: The number of exponent bits. None if unknown.
    """

    bits: int | float | None = None
    exponent_bits: int | None = None

    @classmethod
    def of(cls, name: str, facts: dict[str, Any] | None) -> "Recorded":
        """Create a recorded format from its name and format.json, {name, bits, exponent_bits}.

        The bit widths are ignored if format.json is missing or has another name.
        """
        made = cls(name)
        if facts is not None and facts.get("name") == name:
            made.bits, exponent_bits = _number(facts.get("bits")), _number(facts.get("exponent_bits"))
            made.exponent_bits = None if exponent_bits is None else int(exponent_bits)
        return made


class Choice(Recorded):
    """A choice that is no format itself, such as `precision=pure_fp8`, with its bit width.

    `cpdrun.study.choices` defines which of its formats gives the bit width.

    Attributes:
        rounds: The number of settings that name a format or a bit width.
    """

    rounds: int = 0

    @classmethod
    def made(cls, name: str, bits: float, exponent_bits: int | None, rounds: int = 0) -> "Choice":
        found = cls(name)
        found.bits, found.exponent_bits, found.rounds = bits, exponent_bits, rounds
        return found


def parse(name: object) -> NumberFormat | None:
    """Return the built-in format with this name, or None. A choice is never a format."""
    return None if isinstance(name, Choice) or is_own(name) else _parse(str(name))


@cache
def _parse(name: str) -> NumberFormat | None:
    try:
        return parse_any(name)
    except ValueError:
        return None


def same(one: object, other: object) -> bool:
    """Return True if two values are equal or spell the same format, such as fp32 and e8m23."""
    if parse(one) is not None and parse(one) == parse(other):
        return True
    if isinstance(one, str) or isinstance(other, str):
        return str(one) == str(other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def bits(name: object) -> int | float | None:
    """Return a format's bits per value, or None if unknown.

    Shares of block scales count, so mxfp8_e4m3 has 8.25.
    """
    fmt = parse(name)
    return fmt.bits if fmt is not None else name.bits if isinstance(name, Recorded) else None


def mean_operand_bits(products: Mapping[str, Any] | None) -> float | None:
    """Return the recorded mean bits of the operands in a training step, or None if not all products were counted."""
    found = (products or {}).get("mean_operand_bits")
    return float(found) if is_number(found) and found > 0 and not (products or {}).get("uncounted") else None


def mean_text(bits: float) -> str:
    """Return a mean number of bits as text, such as "6.21 bits on average"."""
    return f"{bits:.3g} bits on average"


def exponent_bits(name: object) -> int | None:
    """Return a floating-point format's number of exponent bits, or None for other formats."""
    fmt = parse(name)
    return (
        fmt.exponent_bits if fmt is not None else name.exponent_bits if isinstance(name, Recorded) else None
    )


def is_baseline(name: object) -> bool:
    """Return True for fp32 and for choices that round nothing, the default baselines."""
    fmt = parse(name)
    if fmt is None and isinstance(name, Recorded):
        return (name.exponent_bits, name.bits) == (8, 32)
    return fmt is not None and fmt.is_fp32


def is_floating(name: object) -> bool:
    """Return True for a built-in binary floating-point format, which has emin and emax."""
    fmt = parse(name)
    return fmt is not None and fmt.exponent_bits is not None


def order(name: object) -> tuple:
    """Return a sort key that orders formats from the fewest bits to the most.

    Among formats with the same number of bits, those with more exponent bits come first, then those with fewer settings
    that name a format. Unknown bit widths come last.
    """
    size, rounds = bits(name), name.rounds if isinstance(name, Choice) else 0
    return (999, 0, 0, str(name)) if size is None else (size, -(exponent_bits(name) or 0), rounds, str(name))


def widest_first(name: object) -> tuple:
    """Return the key that sorts formats from the most bits to the fewest."""
    size, *rest = order(name)
    return (-size, *rest)


def _number(value: Any) -> int | float | None:
    return value if is_number(value) and 0 <= value <= 1024 else None
