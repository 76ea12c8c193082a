"""Writes the vectors that a request asks for: see __init__.py."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from inspect import cleandoc
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from custom_fp.accumulator import Accumulator
from custom_fp.accumulators.block_scales import elements_of, size_of
from custom_fp.backends import only_reference
from custom_fp.formats.names import read, spelled
from custom_fp.formats.protocol import NumberFormat
from custom_fp.properties import definition, facts
from custom_fp.vectors import dots
from custom_fp.vectors.answers import Row, rows, rules, shape_of
from custom_fp.vectors.inputs import corners


def main(asked: str, out: str) -> None:
    only_reference()
    request = json.loads(Path(asked).read_text(encoding="utf-8"))
    head, every = (of_accumulator if "accumulator" in request else of_format)(request)
    write = write_csv if request["as_csv"] else write_lines
    with Path(out).open("w", encoding="utf-8", newline="") as file:
        write(file, head, every)


def of_format(request: dict[str, Any]) -> tuple[dict[str, Any], Iterator[Row]]:
    fmt = read(request["format"])
    asked = rules(request["roundings"], request["overflows"], request["seed"])
    return header(fmt, request), rows(fmt, asked, request["count"], request["seed"])


def of_accumulator(request: dict[str, Any]) -> tuple[dict[str, Any], Iterator[Row]]:
    how = Accumulator.parse(request["accumulator"])
    operands = [read(name) for name in request["operands"]]
    head = {
        "made_by": request["made_by"],
        "command": request["command"],
        "seed": request["seed"],
        "accumulator": {"name": how.name, "in_words": how.spelling, "terms": dots.depth_of(how)},
        "formats": {name: asdict(facts(elements_of(fmt))) for name, fmt in zip("ab", operands, strict=True)}
        | {"result": asdict(facts(dots.result_format(how)))},
        **_scales(operands),
        "definition": cleandoc(Accumulator.__doc__ or ""),
    }
    return head, dots.rows(how, operands, request["count"], request["seed"])


def _scales(operands: list[NumberFormat]) -> dict[str, Any]:
    if not operands[0].has_scales:
        return {}
    each = [{"format": fmt.scale.format.name, "terms": size_of(fmt)} for fmt in operands]
    return {"scales": dict(zip(("a", "b"), each, strict=True))}


def header(fmt: NumberFormat, request: dict[str, Any]) -> dict[str, Any]:
    """What the vectors are of."""
    about = {"boundaries": corners(fmt)[3]} if not fmt.has_scales else {"shape": shape_of(fmt)}
    return {
        "made_by": request["made_by"],
        "command": request["command"],
        "roundings": request["roundings"],
        "overflows": request["overflows"],
        "seed": request["seed"],
        **about,
        "format": {**asdict(facts(fmt)), "spelled": spelled(fmt)},
        "definition": definition(fmt),
        "rounding_is_defined_in": "custom_fp/rounding.py",
    }


def write_lines(file: TextIO, head: dict[str, Any], every: Iterator[Row]) -> None:
    """A JSON object a line."""
    for line in chain([head], every):
        file.write(json.dumps(line) + "\n")


def write_csv(file: TextIO, head: dict[str, Any], every: Iterator[Row]) -> None:
    """The header behind `# `, in lines; then a table, in which several numbers are parted by spaces."""
    for line in json.dumps(head, indent=1).splitlines():
        file.write(f"# {line}\n")
    first = next(every)
    # a rounding that draws has a column more
    table = csv.DictWriter(file, _columns(first), restval="", lineterminator="\n")
    table.writeheader()
    for row in chain([first], every):
        table.writerow({k: " ".join(v) if isinstance(v, list) else v for k, v in row.items()})


def _columns(row: Row) -> list[str]:
    names = list(row)
    if "rounding" in names and "random" not in names:
        names.insert(names.index("rounding") + 1, "random")
    return names


if __name__ == "__main__":
    main(*sys.argv[1:])
