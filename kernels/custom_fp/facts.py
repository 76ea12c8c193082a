"""What can be said of a number format without computing with it, as plain values for tables and JSON. No torch here.

Everything is asked of the protocol (formats/protocol.py), and found in what each code is read as, so that a new kind is
described by being one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from typing import Any

from custom_fp.formats.names import KINDS, installed, parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import FAMILIES
from custom_fp.formats.synonyms import SYNONYMS
from custom_fp.words import did_you_mean

Facts = dict[str, Any]


def listed() -> list[NumberFormat]:
    """Of every kind its examples, and the formats of installed packages."""
    return [parse(name) for kind in KINDS.values() for name in kind.EXAMPLES] + [
        parse(name) for name in installed()
    ]


def near(name: str) -> str:
    """` (did you mean 'e4m3'?)` of a name that is no format's, '' where nothing is near."""
    return did_you_mean(name.lower(), _known_names())


def _known_names() -> Iterator[str]:
    for fmt in listed():
        yield from (fmt.name, *fmt.synonyms)
    for family in ("", *FAMILIES[1:]):
        yield from (f"e{e}m{m}{family}" for e in range(1, 9) for m in range(11))


def facts(fmt: NumberFormat) -> Facts:
    """Every fact by its name; None where a format has none, or does not say.

    Of a scaled format the numbers are those of its elements, before their scale. `codes` says what zero, infinity and
    NaN are written as, `nans` how many codes are read as NaN. emax is the exponent of max, but where a format is most
    precise in the middle of its range, where that ends.
    """
    values = fmt.code_values()
    return {
        "name": fmt.name,
        "kind": type(fmt).__name__,
        "bits": fmt.bits,
        "code_bits": fmt.code_bits,
        "exponent_bits": fmt.exponent_bits,
        "mantissa_bits": getattr(fmt, "mantissa_bits", None),
        "bias": getattr(fmt, "bias", None),
        "family": getattr(fmt, "family", None),
        "is_signed": fmt.is_signed,
        **_numbers(fmt, values),
        "has_inf": fmt.has_inf,
        "has_nan": fmt.has_nan,
        "has_negative_zero": fmt.has_negative_zero,
        "codes": _codes(fmt, values),
        "nans": None if values is None else sum(map(math.isnan, values)),
        "scales": _scales(fmt),
        "synonyms": list(fmt.synonyms),
        "elsewhere": [word for word, name in SYNONYMS.items() if name == fmt.name],
        "takes_rounding": fmt.takes_rounding,
        "is_flat": fmt.is_flat,
        "defined_in": type(fmt).__module__,
    }


def definition(fmt: NumberFormat) -> str:
    """The text that defines formats of its kind; '' where Python left texts out."""
    return cleandoc(sys.modules[type(fmt).__module__].__doc__ or "")


def written(value: float) -> float | str:
    """A number for JSON, which knows neither infinity nor NaN."""
    return value if math.isfinite(value) else str(value)


def _numbers(fmt: NumberFormat, values: Any) -> Facts:
    positive = sorted({v for v in values or () if 0 < v < math.inf})
    known = fmt if not fmt.has_scales else getattr(fmt, "of", fmt)  # the elements'
    said = {name: getattr(known, name, None) for name in ("max", "smallest_normal", "smallest_subnormal")}
    said |= {name: getattr(known, name, None) for name in ("emax", "emin")}
    largest = said["max"] if said["max"] is not None else positive[-1] if positive else None
    smallest = positive[0] if positive else said["smallest_subnormal"] or said["smallest_normal"]
    if said["emax"] is None and largest:
        said["emax"] = math.frexp(largest)[1] - 1
    return {
        **said,
        "max": largest,
        "smallest": smallest,
        "epsilon": next((v - 1 for v in positive if v > 1), None) if positive else _epsilon(known),
    }


def _epsilon(fmt: Any) -> float | None:
    return getattr(fmt, "epsilon", None)


def _codes(fmt: NumberFormat, values: Any) -> dict[str, int]:
    if fmt.has_scales:
        return {}
    top = 1 << fmt.code_bits - 1
    known = {"zero": 0, "-zero": top if fmt.has_negative_zero else None}
    known |= {what: getattr(fmt, f"{what}_code", None) for what in ("inf", "nan")}
    known["-inf"] = known["inf"] | top if known["inf"] is not None and fmt.is_signed else None
    if values is not None:
        known |= {what: _first(values, float(what)) for what in ("inf", "-inf")}
        known["zero"] = _first(values, 0.0)
    return {what: code for what, code in known.items() if code is not None}


def _first(values: Sequence[float], wanted: float) -> int | None:
    return next((code for code, value in enumerate(values) if value == wanted), None)


def _scales(fmt: NumberFormat) -> Facts | None:
    """What stands beside the codes."""
    if not fmt.has_scales:
        return None
    return {
        "block": fmt.block if fmt.block is not None else "tensor",
        "bits": fmt.scale_bits,
        "format": getattr(fmt, "scale", None) or ("fp32" if fmt.scale_bits == 32 else None),
        "rule": getattr(fmt, "rule", None),
        "element": str(fmt.of) if hasattr(fmt, "of") else None,
        "of_tensor": fmt.has_tensor_scale,
        "zero_point": fmt.has_zero_point,
    }
