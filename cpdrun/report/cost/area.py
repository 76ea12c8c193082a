"""The transistors of a multiply-accumulate unit by the formats that it multiplies and sums up in: area.csv, which
scripts/synthesise.py makes with Yosys.

A unit that the table lacks is not guessed from its neighbours: it is not synthesised, and the command that adds it is
said. Sums of products of integers are whole numbers, which hardware keeps in int32: where a record says fp32, as
they are emulated, that is looked up.
"""

import csv
from functools import cache
from importlib import resources

from custom_fp.accumulator import is_name

SCRIPT = "python scripts/synthesise.py"

Unit = tuple[str, str, str]  # both operands, the narrower first, and the accumulator


@cache
def table() -> dict[Unit, int]:
    """Transistors of each unit, a multiplier, an adder and both roundings."""
    return {(row["a"], row["b"], row["accumulator"]): int(row["mac"]) for row in rows()}


def rows() -> list[dict[str, str]]:
    """The table as it is written."""
    lines = (resources.files(__package__) / "area.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def unit(a: str, b: str, accumulator: str) -> Unit:
    """As the table has it."""
    of_integers = is_integer(a) and is_integer(b) and accumulator == "fp32"
    return a, b, integers(a, b) if of_integers else accumulator


def integers(a: str, b: str) -> str:
    """What hardware sums up products of two integers in: int32, and 16 bits more than a product where that is more."""
    return f"int{max(32, int(a[3:]) + int(b[3:]) + 16)}"


def why_missing(missing: Unit) -> str:
    """Of a unit that the table lacks, in words: what would add it, where something would."""
    a, b, accumulator = missing
    operands = a if a == b else f"{a}x{b}"
    said = f"{a} x {b} summed up in {accumulator} is not synthesised"
    if is_name(accumulator):
        return f"{said}: units that sum in their own way are not synthesised"
    if len({is_integer(name) for name in missing}) > 1:
        return f"{said}: an integer and a floating-point number have no unit in common"
    return f"{said}: {SCRIPT} {operands} --accumulator {accumulator} adds it"


def is_integer(name: str) -> bool:
    return name.startswith("int") and name[3:].isdigit()
