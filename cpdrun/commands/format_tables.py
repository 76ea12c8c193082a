"""Tables and documents of `cpdrun formats`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from custom_fp.formats.names import KINDS
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.synonyms import naming_notes
from custom_fp.properties import FormatFacts, ScaleFacts, facts, listed, written
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cpdrun.config.yaml_files import files_that_name
from cpdrun.report.render import join_first
from cpdrun.shell.output import Output
from cpdrun.shell.terminal import widen

# The maximum number of yaml files of each group of conf/ that are named as users of a format. Others are only counted.
MOST_NAMED = 6
VALUES_PER_LINE = 8
# The columns of the list of formats. Each heading is mapped to the attribute of `FormatFacts` that the column shows.
# Truth values are shown as "yes" or "-".
LIST_COLUMNS = {
    "format": "name",
    "bits": "bits",
    "max": "max",
    "smallest": "smallest",
    "epsilon": "epsilon",
    "emax": "emax",
    "inf": "has_inf",
    "NaN": "has_nan",
    "-0": "has_negative_zero",
}


@dataclass
class FormatKind:
    """A kind of number format.

    Attributes:
        kind: The name of the kind.
        looks_like: The pattern of the names of its formats.
        examples: The names of some of its formats.
        for_: What the kind is used for.
    """

    kind: str
    looks_like: str
    examples: list[str]
    for_: str


@dataclass
class FormatsDocument:
    """The kinds of number formats, and the formats that have a name of their own, such as e4m3fn."""

    kinds: list[FormatKind]
    formats: list[FormatFacts]


@dataclass(frozen=True)
class FormatDocument(FormatFacts):
    """A number format.

    Attributes:
        used_in: The files of conf/ that name the format.
        values: The value of each code, or null if there are too many codes. Infinities and NaN are text.
    """

    used_in: list[str]
    values: list[float | str] | None


def list_formats(output: Output) -> None:
    formats = [facts(fmt) for fmt in listed()]
    kinds = [
        FormatKind(name, kind.LOOKS_LIKE, list(kind.EXAMPLES), kind.PURPOSE) for name, kind in KINDS.items()
    ]
    output.set_result(FormatsDocument(kinds, formats))
    if output.as_json:
        return
    rows = [(kind.kind, kind.looks_like, kind.for_) for kind in kinds]
    own = "your own format: a subclass of custom_fp.NumberFormat in one of your modules"
    _print_table(output.console, ("kind", "names", "for"), [*rows, ("any", "package.module.NAME", own)])
    output.print("")
    cells = [[_cell(getattr(each, key)) for key in LIST_COLUMNS.values()] for each in formats]
    _print_table(output.console, tuple(LIST_COLUMNS), cells)
    output.print("\nFor formats with scales, the numbers shown are those of the elements before scaling.")
    output.print("To show a format value by value: cpdrun formats NAME")


def show_format(output: Output, fmt: NumberFormat, values: Sequence[float], *, has_more: bool) -> None:
    """Print the properties of a format, and the values of its codes if any are given.

    `has_more` says whether --values would print values that are not printed now.
    """
    known, used = facts(fmt), files_that_name(fmt)
    shown = [written(value) for value in values] or None
    output.set_result(FormatDocument(**vars(known), used_in=used, values=shown), "format")
    if output.as_json:
        return
    _print_table(output.console, ("", ""), [row for row in _properties(known, used) if row[1]])
    if values:
        element = f" of {known.scales.element or 'codes'}, before scaling" if known.scales else ""
        output.print(f"\nvalues{element}, by code")
        for line in _value_lines(values, fmt.code_bits):
            output.print(line)
    elif has_more:
        output.print(f"\n--values shows its {2**fmt.code_bits} values.")


def number(value: float | None) -> str:
    """Format a number with six digits, or as a power such as "2^-9". None becomes "-"."""
    if value is None:
        return "-"
    if 0 < value < 2**-6 and math.frexp(value)[0] == 0.5:
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value:.6g}"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "-"
    return value if isinstance(value, str) else number(value)


def _print_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. It has no header if all headings are empty."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=any(headings))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if not console.is_terminal:  # because a file has no maximum width
        widen(console, table)
    console.print(table)


def _properties(known: FormatFacts, used: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each property; the text is "" if it does not apply."""
    whose = "element's " if known.scales else ""
    has = [(known.has_inf, "infinity"), (known.has_nan, "NaN"), (known.has_negative_zero, "-0")]
    signs = [word if is_there else f"no {word}" for is_there, word in [*has, (known.is_signed, "sign")]]
    yield "format", f"{known.name} ({known.kind}, defined in {known.defined_in})"
    yield "note", " ".join(naming_notes([known.name]))
    yield "also called", ", ".join(known.synonyms)
    yield "elsewhere", ", ".join(known.elsewhere)
    yield "bits", _bits(known)
    yield "scales", "" if known.scales is None else _scales(known.scales)
    yield f"{whose}largest", _exact(known.max)
    yield "smallest normal", _exact(known.smallest_normal)
    yield "smallest subnormal", _exact(known.smallest_subnormal)
    yield "smallest positive", _exact(known.smallest) if known.smallest_normal is None else ""
    yield "exponents", _exponents(known)
    yield "precision near 1", "" if known.epsilon is None else f"{number(known.epsilon)} to the next value"
    yield "has", ", ".join(signs if not known.is_signed else signs[:-1])
    yield "codes", "" if known.scales else _codes(known)
    yield "rounding", "any" if known.takes_rounding else "to nearest only"
    yield "on the wire", "" if known.is_flat else "not supported, because its blocks have two dimensions"
    yield "used in conf/", _used(used)


def _bits(known: FormatFacts) -> str:
    bits = f"{known.bits:g}"
    if known.mantissa_bits is None:
        return bits if known.bits == known.code_bits else f"{bits}, of which {known.code_bits} in each code"
    sign = "1 sign, " if known.is_signed else "no sign, "
    return f"{bits}: {sign}{known.exponent_bits} exponent (bias {known.bias}), {known.mantissa_bits} mantissa"


def _scales(scales: ScaleFacts) -> str:
    names = {"tensor": "the tensor", "row": "each row", "column": "each column"}
    if isinstance(scales.block, str):
        block = names[scales.block]
    else:
        tile = "x".join(map(str, scales.block)) if isinstance(scales.block, tuple) else scales.block
        block = f"every {tile} values"
    parts = [f"{scales.format or f'{scales.bits} bits'} for {block}"]
    parts += [f"by the rule {scales.rule}"] if scales.rule else []
    parts += ["a float32 scale of the tensor"] if scales.of_tensor else []
    parts += ["a zero point of 8 bits for each"] if scales.zero_point else []
    return ", ".join(parts)


def _exact(value: float | None) -> str:
    """Return all digits of a number, and its power of two: "0.015625 = 2^-6"."""
    if not value:
        return "" if value is None else "0"
    power = math.log2(value)
    return f"{value!r}" + (f" = 2^{power:.0f}" if power == round(power) and abs(power) > 3 else "")


def _exponents(known: FormatFacts) -> str:
    """Return the range of normal exponents, or of all exponents without subnormals."""
    if not known.max:
        return ""
    last = math.frexp(known.max)[1] - 1
    first = known.emin if known.emin is not None else math.frexp(known.smallest or 0.0)[1] - 1
    return f"{first} .. {last}" + (f", precise up to {known.emax}" if known.emax != last else "")


def _codes(known: FormatFacts) -> str:
    digits = -(-known.code_bits // 4)
    names = {"zero": "0", "-zero": "-0", "nan": "NaN"}
    codes = ", ".join(f"{names.get(name, name)} {code:0{digits}x}" for name, code in known.codes.items())
    return codes + (f" ({known.nans} are read as NaN)" if (known.nans or 0) > 1 else "")


def _used(used: Sequence[str]) -> str:
    groups: dict[str, list[str]] = {}
    for path in used:
        group, _, name = path.rpartition("/")
        groups.setdefault(f"{group}: " if group else "", []).append(name)
    return "; ".join(group + join_first(names, most=MOST_NAMED) for group, names in groups.items())


def _value_lines(values: Sequence[float], bits: int) -> Iterator[str]:
    """Yield lines such as "0x08  0.0156  0.0176", starting with the first value's code."""
    shown = [f"{value:.9g}" for value in values]
    digits, width = -(-bits // 4), max(map(len, shown))
    for first in range(0, len(shown), VALUES_PER_LINE):
        cells = "  ".join(f"{cell:>{width}}" for cell in shown[first : first + VALUES_PER_LINE])
        yield f"0x{first:0{digits}x}  {cells}"
