"""Number formats as the report needs them: a name out of a config -> Format, or None for an unknown name."""

from functools import cache

from custom_fp.format import Format


@cache
def parse(name: object) -> Format | None:
    """The format called `name`; None where a record names one that this version does not know."""
    try:
        return Format.parse(str(name))
    except ValueError:
        return None


def bits(name: object) -> int | None:
    fmt = parse(name)
    return None if fmt is None else fmt.bits


def is_baseline(name: object) -> bool:
    """Whether this is fp32, which every other format is measured against."""
    fmt = parse(name)
    return fmt is not None and (fmt.exponent_bits, fmt.mantissa_bits) == (8, 23)


def order(name: object) -> tuple:
    """Sort key: fewest bits first; among equals the one with more exponent bits (more range) first."""
    fmt = parse(name)
    return (999, 0, str(name)) if fmt is None else (fmt.bits, -fmt.exponent_bits, str(name))
