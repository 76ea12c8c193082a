"""Look up the number of transistors of a multiply-accumulate unit by the formats of its operands and its accumulator.

The table is area.csv, which scripts/research/area makes with Yosys. A unit that is missing from the table is not
estimated from similar units. The report names the command that adds it instead. Sums of products of integers are whole
numbers, which hardware accumulates in integers. The emulation accumulates them in fp32, so an fp32 accumulator of
integer products is looked up as an integer accumulator.
"""

import csv
from functools import cache
from importlib import resources

from custom_fp.accumulator import is_name

SCRIPT = "PYTHONPATH=scripts python -m research.area"

# The format of the narrower operand, the format of the other operand, and the format of the accumulator.
Unit = tuple[str, str, str]


@cache
def table() -> dict[Unit, int]:
    """Return the transistors of each unit, which has a multiplier, an adder and a rounding after each of them."""
    return {(row["a"], row["b"], row["accumulator"]): int(row["mac"]) for row in rows()}


def rows() -> list[dict[str, str]]:
    """Return the rows of area.csv as text by column name."""
    lines = (resources.files(__package__) / "area.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def unit(a: str, b: str, accumulator: str) -> Unit:
    """Return the key of a unit in `table`, with an integer accumulator if both operands are integers."""
    of_integers = is_integer(a) and is_integer(b) and accumulator == "fp32"
    return a, b, integers(a, b) if of_integers else accumulator


def integers(a: str, b: str) -> str:
    """Return the accumulator of products of two integers: int32, or 16 bits more than a product if that is wider."""
    return f"int{max(32, int(a[3:]) + int(b[3:]) + 16)}"


def why_missing(missing: Unit) -> str:
    """Return why a unit is missing from the table, with the command that adds it if there is one."""
    a, b, accumulator = missing
    operands = a if a == b else f"{a}x{b}"
    said = f"{a} x {b} summed up in {accumulator} is not synthesised"
    if is_name(accumulator):
        return f"{said}: units that sum in their own way are not synthesised"
    if len({is_integer(name) for name in missing}) > 1:
        return f"{said}: an integer and a floating-point number have no unit in common"
    return f"{said}: {SCRIPT} {operands} --accumulator {accumulator} adds it"


def is_integer(name: str) -> bool:
    """Return whether a format is an integer format, such as `int8`."""
    return name.startswith("int") and name[3:].isdigit()
