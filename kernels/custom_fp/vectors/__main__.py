"""The command that writes the test vectors of a request to a file. See custom_fp/vectors/__init__.py."""

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
from custom_fp.vectors import dot_products
from custom_fp.vectors.answers import Row, rows, rules, shape_of
from custom_fp.vectors.inputs import corners


def main(request_file: str, out: str) -> None:
    """Write the test vectors that a JSON file requests."""
    only_reference()
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    head, vectors = (accumulator_vectors if "accumulator" in request else format_vectors)(request)
    write = write_csv if request["as_csv"] else write_lines
    with Path(out).open("w", encoding="utf-8", newline="") as file:
        write(file, head, vectors)


def format_vectors(request: dict[str, Any]) -> tuple[dict[str, Any], Iterator[Row]]:
    """Return the header and the test vectors of a number format."""
    fmt = read(request["format"])
    modes = rules(request["roundings"], request["overflows"], request["seed"])
    return header(fmt, request), rows(fmt, modes, request["count"], request["seed"])


def accumulator_vectors(request: dict[str, Any]) -> tuple[dict[str, Any], Iterator[Row]]:
    """Return the header and the test vectors of an accumulator."""
    how = Accumulator.parse(request["accumulator"])
    operands: list[Any] = [read(name) for name in request["operands"]]
    head = {
        "made_by": request["made_by"],
        "command": request["command"],
        "seed": request["seed"],
        "accumulator": {"name": how.name, "in_words": how.spelling, "terms": dot_products.depth_of(how)},
        "formats": {name: asdict(facts(elements_of(fmt))) for name, fmt in zip("ab", operands, strict=True)}
        | {"result": asdict(facts(dot_products.result_format(how)))},
        **_scales(operands),
        "definition": cleandoc(Accumulator.__doc__ or ""),
    }
    return head, dot_products.rows(how, operands, request["count"], request["seed"])


def _scales(operands: list[Any]) -> dict[str, Any]:
    if not operands[0].has_scales:
        return {}
    each = [{"format": fmt.scale.format.name, "terms": size_of(fmt)} for fmt in operands]
    return {"scales": dict(zip(("a", "b"), each, strict=True))}


def header(fmt: NumberFormat, request: dict[str, Any]) -> dict[str, Any]:
    """Return the header of the file, which describes the format and its test vectors."""
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


def write_lines(file: TextIO, head: dict[str, Any], vectors: Iterator[Row]) -> None:
    """Write the header and each vector as a JSON object on its own line."""
    for line in chain([head], vectors):
        file.write(json.dumps(line) + "\n")


def write_csv(file: TextIO, head: dict[str, Any], vectors: Iterator[Row]) -> None:
    """Write the header as lines that begin with `# `, then a table. In a cell, numbers are separated by spaces."""
    for line in json.dumps(head, indent=1).splitlines():
        file.write(f"# {line}\n")
    first = next(vectors)
    table = csv.DictWriter(file, _columns(first), restval="", lineterminator="\n")
    table.writeheader()
    for row in chain([first], vectors):
        table.writerow({k: " ".join(v) if isinstance(v, list) else v for k, v in row.items()})


def _columns(row: Row) -> list[str]:
    """Return the columns of the table, including `random`, which the first row may not have."""
    names = list(row)
    if "rounding" in names and "random" not in names:
        names.insert(names.index("rounding") + 1, "random")
    return names


if __name__ == "__main__":
    main(*sys.argv[1:])
