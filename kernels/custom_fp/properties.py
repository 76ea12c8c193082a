"""The properties of number formats as plain values, for tables and JSON.

The properties are derived from the protocol (formats/protocol.py) and from the values of the codes, so they also cover
new kinds of formats. This module does not import torch.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any

from custom_fp.formats.names import KINDS, installed, parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import FAMILIES
from custom_fp.formats.scaled_format import ScaledFormat
from custom_fp.formats.synonyms import SYNONYMS
from custom_fp.suggestions import did_you_mean


@dataclass(frozen=True)
class ScaleFacts:
    """The scales of a format whose values are stored in blocks.

    Attributes:
        block: The number of values that share a scale, the shape of a block, or "tensor", "row" or "column".
        bits: The bits of a scale.
        format: The format of a scale.
        rule: The rule by which scales are chosen.
        element: The format of the elements.
        of_tensor: Whether the whole tensor has an additional float32 scale.
        zero_point: Whether each scale has a zero point.
    """

    block: int | str | tuple[int, ...]
    bits: int
    format: str | None
    rule: str | None
    element: str | None
    of_tensor: bool
    zero_point: bool


@dataclass(frozen=True)
class FormatFacts:
    """The properties of a number format. A property that does not apply to the format is None.

    For a format with scales, the numbers are those of its elements before they are multiplied by a scale.

    Attributes:
        name: The name of the format.
        kind: The name of the class that implements the format, such as "Format" or "BlockFormat".
        bits: The number of bits per value, including scales.
        code_bits: The number of bits of a code.
        exponent_bits: The number of bits of the exponent.
        mantissa_bits: The number of bits of the mantissa.
        bias: The bias of the exponent.
        family: The family of a scalar format, such as "ieee" or "fn".
        is_signed: Whether the format has negative values.
        max: The largest finite value.
        smallest_normal: The smallest normal value.
        smallest_subnormal: The smallest subnormal value.
        emax: The exponent of `max`. For a format whose precision is highest in the middle of its range, the largest
            exponent at which values have that precision.
        emin: The exponent of `smallest_normal`.
        smallest: The smallest positive value.
        epsilon: The distance from 1 to the next larger value.
        has_inf: Whether the format has infinities.
        has_nan: Whether the format has NaN.
        has_negative_zero: Whether the format has -0.
        codes: The codes of zero, -zero, inf, -inf and nan.
        nans: The number of codes that are read as NaN.
        scales: The properties of the scales, or None if the format has no scales.
        synonyms: Other names of the format.
        elsewhere: The names of the format in other software.
        takes_rounding: Whether the format supports every rounding mode.
        is_flat: Whether the format can be sent between workers.
        defined_in: The module that defines the kind of the format.
    """

    name: str
    kind: str
    bits: float
    code_bits: int
    exponent_bits: int | None
    mantissa_bits: int | None
    bias: int | None
    family: str | None
    is_signed: bool
    max: float | None
    smallest_normal: float | None
    smallest_subnormal: float | None
    emax: int | None
    emin: int | None
    smallest: float | None
    epsilon: float | None
    has_inf: bool
    has_nan: bool
    has_negative_zero: bool
    codes: dict[str, int]
    nans: int | None
    scales: ScaleFacts | None
    synonyms: list[str]
    elsewhere: list[str]
    takes_rounding: bool
    is_flat: bool
    defined_in: str


def listed() -> list[NumberFormat]:
    """Return the example formats of every kind, and the formats that installed packages provide."""
    return [parse(name) for kind in KINDS.values() for name in kind.EXAMPLES] + [
        parse(name) for name in installed()
    ]


def near(name: str) -> str:
    """Return ` (did you mean 'e4m3'?)` for an unknown name, or "" if no format has a similar name."""
    return did_you_mean(name.lower(), _known_names())


def _known_names() -> Iterator[str]:
    for fmt in listed():
        yield from (fmt.name, *fmt.synonyms)
    for family in ("", *FAMILIES[1:]):
        yield from (f"e{e}m{m}{family}" for e in range(1, 9) for m in range(11))


def facts(fmt: NumberFormat) -> FormatFacts:
    """Return the properties of a format."""
    values = fmt.code_values()
    return FormatFacts(
        name=fmt.name,
        kind=type(fmt).__name__,
        bits=fmt.bits,
        code_bits=fmt.code_bits,
        exponent_bits=fmt.exponent_bits,
        mantissa_bits=getattr(fmt, "mantissa_bits", None),
        bias=getattr(fmt, "bias", None),
        family=getattr(fmt, "family", None),
        is_signed=fmt.is_signed,
        **_numbers(fmt, values),
        has_inf=fmt.has_inf,
        has_nan=fmt.has_nan,
        has_negative_zero=fmt.has_negative_zero,
        codes=_codes(fmt, values),
        nans=None if values is None else sum(map(math.isnan, values)),
        scales=_scales(fmt),
        synonyms=list(fmt.synonyms),
        elsewhere=[word for word, name in SYNONYMS.items() if name == fmt.name],
        takes_rounding=fmt.takes_rounding,
        is_flat=fmt.is_flat,
        defined_in=type(fmt).__module__,
    )


def definition(fmt: NumberFormat) -> str:
    """Return the docstring that defines the kind of a format, or "" if Python runs without docstrings."""
    return cleandoc(sys.modules[type(fmt).__module__].__doc__ or "")


def written(value: float) -> float | str:
    """Return a number in a form that JSON can represent: infinity and NaN become text."""
    return value if math.isfinite(value) else str(value)


def _numbers(fmt: NumberFormat, values: Any) -> dict[str, Any]:
    positive = sorted({v for v in values or () if 0 < v < math.inf})
    known = (
        fmt if not fmt.has_scales else getattr(fmt, "element", fmt)
    )  # for scaled formats, the element's properties
    numbers = {name: getattr(known, name, None) for name in ("max", "smallest_normal", "smallest_subnormal")}
    numbers |= {name: getattr(known, name, None) for name in ("emax", "emin")}
    largest = numbers["max"] if numbers["max"] is not None else positive[-1] if positive else None
    smallest = positive[0] if positive else numbers["smallest_subnormal"] or numbers["smallest_normal"]
    if numbers["emax"] is None and largest:
        numbers["emax"] = math.frexp(largest)[1] - 1
    return {
        **numbers,
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


def _scales(fmt: NumberFormat) -> ScaleFacts | None:
    if not fmt.has_scales:
        return None
    scale = fmt.scale if isinstance(fmt, ScaledFormat) else None
    return ScaleFacts(
        block=fmt.block if fmt.block is not None else "tensor",
        bits=fmt.scale_bits,
        format=scale.format.name if scale else "fp32" if fmt.scale_bits == 32 else None,
        rule=scale.rule if scale else None,
        element=str(fmt.element) if isinstance(fmt, ScaledFormat) else None,
        of_tensor=fmt.has_tensor_scale,
        zero_point=fmt.has_zero_point,
    )
