"""The command `cpdrun formats`, which lists the number formats or shows one of them value by value."""

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cpdrun.arguments import add_json, add_mode, complete_by
from cpdrun.errors import OK, UserError

if TYPE_CHECKING:
    from custom_fp.facts import Facts
    from custom_fp.formats.protocol import NumberFormat
    from rich.console import Console

    from cpdrun.shell.output import Output

# The largest code width, in bits, for which a table of values is shown: by default, and with --values.
TABLE_BITS, MOST_TABLE_BITS = 8, 16
# The number of yaml files per group of conf/ that are named as uses of a format.
MOST_NAMED = 6
# The maximum width of a table, in characters.
WIDEST = 1000


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    formats = commands.add_parser(
        "formats",
        help="list the number formats, or show one of them value by value",
        description="Without a name, list the kinds of number formats and the formats with names of their own. With a "
        "name, show the format's properties, where conf/ uses it, and the value of each of its codes.",
        epilog="Example: cpdrun formats e4m3fn",
    )
    known = "any format: e5m2, nvfp4, posit8, e6m9fn ..."
    complete_by("formats", formats.add_argument("name", nargs="?", metavar="NAME", help=known))
    formats.add_argument(
        "--values", action="store_true", help="also show the values of a format of 9 to 16 bits"
    )
    add_mode(formats, "--vectors", "write test vectors of a format or an accumulator")
    add_json(formats)
    return formats


def run(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        if arguments.values:
            raise UserError("--values needs the name of a format: cpdrun formats NAME --values")
        _list(arguments.output)
        return OK
    fmt = named(arguments.name)
    if arguments.values and not _values(fmt, MOST_TABLE_BITS):
        why = f"has {fmt.code_bits} bits" if fmt.code_bits > MOST_TABLE_BITS else "has none to show"
        raise UserError(f"--values: {fmt.name} {why}; tables of values stop at {MOST_TABLE_BITS} bits")
    values = _values(fmt, MOST_TABLE_BITS if arguments.values else TABLE_BITS)
    _show(arguments.output, fmt, values)
    return OK


def named(name: str) -> "NumberFormat":
    """Return the format with the given name.

    Raises:
        UserError: There is no such format. The message names the most similar format or what is allowed.
    """
    from custom_fp.facts import near
    from custom_fp.formats.names import parse

    try:
        return parse(name)
    except ValueError as error:
        if suggestion := "" if "did you mean" in str(error) else near(name):
            raise UserError(f"unknown format {name!r}{suggestion}") from None
        raise UserError(str(error)) from None


def _values(fmt: "NumberFormat", bits: int) -> Sequence[float]:
    """Return the values of all codes of a format, or () if its codes have more than `bits` bits or no fixed values."""
    return (fmt.code_values() if fmt.code_bits <= bits else None) or ()


# ---- the list of all formats


def _list(output: "Output") -> None:
    """Print the kinds of number formats and the formats with names of their own."""
    from custom_fp.facts import facts, listed
    from custom_fp.formats.names import KINDS

    every = [facts(fmt) for fmt in listed()]
    kinds = [
        {"kind": name, "looks_like": kind.LOOKS_LIKE, "examples": list(kind.EXAMPLES), "for": kind.PURPOSE}
        for name, kind in KINDS.items()
    ]
    output.set_result({"kinds": kinds, "formats": every})
    if output.as_json:
        return
    console = output.console
    rows = [(each["kind"], each["looks_like"], each["for"]) for each in kinds]
    own: tuple[str, ...] = (
        "any",
        "package.module.NAME",
        "one of your own: a value under custom_fp.NumberFormat in a module of yours",
    )
    _print_table(console, ("kind", "names", "for"), [*rows, own])
    console.print()
    _print_table(console, tuple(LIST_COLUMNS), [[show(f) for show in LIST_COLUMNS.values()] for f in every])
    console.print(
        "\nOf formats with scales the numbers are those of elements, before their scale.", markup=False
    )
    console.print("cpdrun formats NAME shows one, value by value.", markup=False)


def _yes(key: str):
    return lambda facts: "yes" if facts[key] else "-"


# The columns of the list of formats. Each function returns the cell for the facts about a format.
LIST_COLUMNS = {
    "format": lambda f: f["name"],
    "bits": lambda f: f"{f['bits']:g}",
    "max": lambda f: number(f["max"]),
    "smallest": lambda f: number(f["smallest"]),
    "epsilon": lambda f: number(f["epsilon"]),
    "emax": lambda f: number(f["emax"]),
    "inf": _yes("has_inf"),
    "NaN": _yes("has_nan"),
    "-0": _yes("has_negative_zero"),
}


def number(value: float | None) -> str:
    """Return a number with six significant digits.

    Powers of two below 2^-6 are written as powers. None is written as "-".
    """
    if value is None:
        return "-"
    if 0 < value < 2**-6 and math.frexp(value)[0] == 0.5:
        return f"2^{math.frexp(value)[1] - 1}"
    return f"{value:.6g}"


def _print_table(console: "Console", headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table. If all headings are empty, the table has no header."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=any(headings))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if not console.is_terminal:  # because a file has no maximum width
        width = console.measure(table, options=console.options.update(width=WIDEST)).maximum
        console.width = max(console.width, width)
    console.print(table)


# ---- a single format


def _show(output: "Output", fmt: "NumberFormat", values: Sequence[float]) -> None:
    """Print the properties of a format and the given values of its codes."""
    from custom_fp.facts import facts, written

    from cpdrun.config.uses import uses

    known, used = facts(fmt), uses(fmt)
    table = [written(value) for value in values] or None
    output.set_result({**known, "used_in": used, "values": table}, "format")
    if output.as_json:
        return
    console = output.console
    _print_table(console, ("", ""), [row for row in _rows(known, used) if row[1]])
    if values:
        element = (
            f" of {known['scales']['element'] or 'codes'}, before their scale" if known["scales"] else ""
        )
        console.print(f"\nvalues{element}, by code", markup=False)
        for line in _value_lines(values, fmt.code_bits):
            console.print(line, markup=False, soft_wrap=True)
    elif fmt.code_bits <= MOST_TABLE_BITS and fmt.code_values():
        console.print(f"\n--values shows its {2**fmt.code_bits} values.", markup=False)


def _rows(known: "Facts", used: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each property of a format. The text is empty if a property does not apply."""
    from custom_fp.formats.synonyms import naming_notes

    scales = known["scales"]
    yield "format", f"{known['name']} ({known['kind']}, defined in {known['defined_in']})"
    yield "note", " ".join(naming_notes([known["name"]]))
    yield "also called", ", ".join(known["synonyms"])
    yield "elsewhere", ", ".join(known["elsewhere"])
    yield "bits", _bits(known)
    if scales:
        yield "scales", _scales(scales)
    whose = "element's " if scales else ""
    yield f"{whose}largest", _known(known["max"])
    yield "smallest normal", _known(known["smallest_normal"])
    yield "smallest subnormal", _known(known["smallest_subnormal"])
    if known["smallest_normal"] is None:
        yield "smallest positive", _known(known["smallest"])
    yield "exponents", _exponents(known)
    yield (
        "precision near 1",
        "" if known["epsilon"] is None else f"{number(known['epsilon'])} to the next value",
    )
    yield (
        "has",
        ", ".join(
            word if known[key] else f"no {word}"
            for word, key in (("infinity", "has_inf"), ("NaN", "has_nan"), ("-0", "has_negative_zero"))
        )
        + ("" if known["is_signed"] else ", no sign"),
    )
    yield "codes", "" if scales else _codes(known)
    yield "rounding", "any" if known["takes_rounding"] else "to nearest only"
    if not known["is_flat"]:
        yield "on the wire", "not: its blocks lie in two dimensions"
    yield "used in conf/", _used(used)


def _bits(known: "Facts") -> str:
    parts = f"{known['bits']:g}"
    if known["mantissa_bits"] is None:
        return parts + (
            f", of which {known['code_bits']} a code" if known["bits"] != known["code_bits"] else ""
        )
    sign = "1 sign, " if known["is_signed"] else "no sign, "
    fields = f"{known['exponent_bits']} exponent (bias {known['bias']}), {known['mantissa_bits']} mantissa"
    return f"{parts}: {sign}{fields}"


def _scales(scales: "Facts") -> str:
    block = scales["block"]
    of = {"tensor": "the tensor", "row": "each row", "column": "each column"}.get(block)
    tile = "x".join(map(str, block)) if isinstance(block, tuple) else block
    said = [f"{scales['format'] or str(scales['bits']) + ' bits'} for {of or f'every {tile} values'}"]
    said += [f"by the rule {scales['rule']}"] if scales["rule"] else []
    said += ["a float32 scale of the tensor"] if scales["of_tensor"] else []
    said += ["a zero point of 8 bits beside each"] if scales["zero_point"] else []
    return ", ".join(said)


def _known(value: float | None) -> str:
    if not value:
        return "" if value is None else "0"
    power = math.log2(value)
    return f"{value!r}" + (f" = 2^{power:.0f}" if power == round(power) and abs(power) > 3 else "")


def _exponents(known: "Facts") -> str:
    """Return the range of the exponents of normal values.

    If a format does not distinguish normal and subnormal values, return the range of all exponents.
    """
    if not known["max"]:
        return ""
    last = math.frexp(known["max"])[1] - 1
    first = known["emin"] if known["emin"] is not None else math.frexp(known["smallest"])[1] - 1
    tapers = f", precise up to {known['emax']}" if known["emax"] != last else ""
    return f"{first} .. {last}{tapers}"


def _codes(known: "Facts") -> str:
    digits = -(-known["code_bits"] // 4)
    words = {"zero": "0", "-zero": "-0", "nan": "NaN"}
    said = ", ".join(f"{words.get(what, what)} {code:0{digits}x}" for what, code in known["codes"].items())
    return said + (f" ({known['nans']} are read as NaN)" if (known["nans"] or 0) > 1 else "")


def _used(used: Sequence[str]) -> str:
    groups: dict[str, list[str]] = {}
    for path in used:
        group, _, name = path.rpartition("/")
        groups.setdefault(group, []).append(name)
    said = []
    for group, names in groups.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        said.append(f"{group + ': ' if group else ''}{', '.join(names[:MOST_NAMED])}{more}")
    return "; ".join(said)


def _value_lines(values: Sequence[float], bits: int, a_line: int = 8) -> Iterator[str]:
    """Yield lines such as `0x08  0.0156  0.0176 ...`, with the code of the first value and then `a_line` values."""
    shown: list[Any] = [f"{value:.9g}" for value in values]
    digits, width = -(-bits // 4), max(map(len, shown))
    for first in range(0, len(shown), a_line):
        cells = "  ".join(f"{cell:>{width}}" for cell in shown[first : first + a_line])
        yield f"0x{first:0{digits}x}  {cells}"
