"""The command `cpdrun formats`, which lists the number formats or shows one of them."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cpdrun.arguments import add_json, add_mode, complete_by
from cpdrun.errors import OK, UserError

if TYPE_CHECKING:
    from custom_fp.formats.protocol import NumberFormat

DOCUMENTS = {
    "formats": "cpdrun.commands.format_tables:FormatsDocument",
    "format": "cpdrun.commands.format_tables:FormatDocument",
}
# The largest number of bits per code for which values are shown. The first applies by default, the second with
# --values.
TABLE_BITS, MOST_TABLE_BITS = 8, 16


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
    from cpdrun.commands.format_tables import list_formats, show_format

    if arguments.name is None:
        if arguments.values:
            raise UserError("--values needs the name of a format: cpdrun formats NAME --values")
        list_formats(arguments.output)
        return OK
    fmt = named(arguments.name)
    values = _values(fmt, MOST_TABLE_BITS if arguments.values else TABLE_BITS)
    if arguments.values and not values:
        why = f"has {fmt.code_bits} bits" if fmt.code_bits > MOST_TABLE_BITS else "has none to show"
        raise UserError(f"--values: {fmt.name} {why}; tables of values stop at {MOST_TABLE_BITS} bits")
    show_format(arguments.output, fmt, values, has_more=not values and bool(_values(fmt, MOST_TABLE_BITS)))
    return OK


def named(name: str) -> "NumberFormat":
    """Parse the name of a format.

    Raises:
        UserError: There is no such format. The message suggests a similar name, or says what is allowed.
    """
    from custom_fp.formats.names import parse
    from custom_fp.properties import near

    try:
        return parse(name)
    except ValueError as error:
        if suggestion := "" if "did you mean" in str(error) else near(name):
            raise UserError(f"unknown format {name!r}{suggestion}") from None
        raise UserError(str(error)) from None


def _values(fmt: "NumberFormat", bits: int) -> Sequence[float]:
    """Return the value of each code; () if there are none or more than 2**bits."""
    return (fmt.code_values() if fmt.code_bits <= bits else None) or ()
