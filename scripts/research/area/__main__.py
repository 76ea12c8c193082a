"""Count the transistors of multipliers and multiply-accumulate units, and write the table area.csv for reports.

    apt-get install yosys
    make area                                                                 # the whole table, an hour
    export PYTHONPATH=scripts
    python -m research.area e3m4 e4m3xe5m2 --accumulator fp32,bf16            # add these rows
    python -m research.area --published                                       # compare ratios with published ones

A row is a pair of operands and an accumulator. Yosys (`synth -flatten; stat -tech cmos`) counts the transistors of
static CMOS gates of

    significands   the multiplier of the two significands, hidden bits included
    multiply       Q(a b), in the accumulator's format
    add            Q(c + d), in the accumulator's format
    mac            Q(c + Q(a b)), the unit in which the multiply-accumulates of a training step are counted

mac_verilog.py describes these units. The gates of each mac are then evaluated (netlist.py) for every combination of
inputs. If there are more than 2^24 combinations, 2^20 random ones are used, and in half of them, the two summands
nearly cancel. The results are compared bit for bit with custom_fp.quantize of the float64 results. A row with a
difference is not written. The column `cases` contains the number of combinations.

The numbers do not describe a placed and routed chip: there is no clock, no pipeline, no wiring and no buffers, and the
area of a cell is its number of transistors. Use the table only for ratios between formats.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import custom_fp
import numpy as np
import torch
from custom_fp.formats.scalar import Format
from research.area import mac_verilog
from research.area.netlist import Netlist
from research.area.published_areas import compared

from cpdrun.costmodel import costs

TABLE = Path(costs.__file__).with_name("area.csv")
COLUMNS = ("a", "b", "accumulator", "significands", "multiply", "add", "mac", "cases")
OPERANDS = (
    *(
        "e2m1",
        "e2m1fn",
        "e3m0",
        "e2m3",
        "e2m3fn",
        "e3m2",
        "e3m2fn",
        "e4m3",
        "e4m3fn",
        "e5m2",
        "e3m4",
        "e4m4",
        "e5m3",
    ),
    *("bf16", "fp16", "tf32", "fp32", "e4m3xe5m2", "e4m3fnxe5m2", "bf16xfp32", "fp16xfp32"),
)
ACCUMULATORS = ("fp32", "fp16", "bf16", "e6m9", "e8m13")  # e6m9: IBM's DLFloat; e8m13: 14 bits of significand
INTEGERS = ("int4", "int8", "int4xint8", "int16")
ALL_CASES, DRAWN_CASES = 2**24, 2**20
RECIPE = "synth -flatten -top unit; stat -tech cmos"


def transistors(verilog: str, netlist: Path | None = None) -> int:
    """Return the number of transistors of the module `unit`. If `netlist` is given, write its gates to it as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        source, statistics = Path(folder, "unit.v"), Path(folder, "stat.txt")
        source.write_text(verilog, encoding="utf-8")
        script = f"read_verilog {source}; synth -flatten -top unit; tee -q -o {statistics} stat -tech cmos"
        script += f"; write_json {netlist}" if netlist else ""
        subprocess.run(["yosys", "-q", "-p", script], check=True)
        (found,) = re.findall(r"number of transistors:\s+(\d+)\n", statistics.read_text(encoding="utf-8"))
    return int(found)


def checked_mac(a: Format, b: Format, accumulator: Format) -> tuple[int, int]:
    """Return the number of transistors of the unit, and the number of inputs for which its gates were compared.

    Raises:
        SystemExit: A result differs.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "unit.json")
        count, gates = transistors(mac_verilog.mac(a, b, accumulator), file), Netlist(file)
        codes = inputs(a, b, accumulator)
        got = custom_fp.decode(_signed(gates(**codes), accumulator), accumulator).double().numpy()
    want = expected(a, b, accumulator, codes)
    wrong = np.flatnonzero(~same(got, want))
    if len(wrong):
        i = wrong[0]
        case = ", ".join(f"{name}={int(values[i]):#x}" for name, values in codes.items())
        sys.exit(
            f"{a} x {b} + {accumulator}: {len(wrong)} differences, such as {case}: {got[i]}, not {want[i]}"
        )
    return count, len(want)


def expected(a: Format, b: Format, accumulator: Format, codes: dict[str, np.ndarray]) -> np.ndarray:
    """Return Q(c + Q(a b)), computed in float64 with custom_fp.

    The product of two significands of up to 24 bits is exact in float64. A sum of two values of up to 24 bits that is
    rounded to 53 bits and then to 24 equals one that is rounded once (Figueroa, SIGNUM 1995: 53 >= 2 * 24 + 2).
    """
    product = product_of(a, b, accumulator, codes)
    return custom_fp.quantize(_values(codes["c"], accumulator) + product, accumulator).double().numpy()


def product_of(a: Format, b: Format, accumulator: Format, codes: dict[str, np.ndarray]) -> torch.Tensor:
    return custom_fp.quantize(_values(codes["a"], a) * _values(codes["b"], b), accumulator).double()


def inputs(a: Format, b: Format, accumulator: Format) -> dict[str, np.ndarray]:
    """Return codes of a, b and c, of shape (n,) and dtype uint64.

    These are all combinations of codes, or random ones. In half of the random ones, c is near -Q(a b).
    """
    sizes = a.bits, b.bits, accumulator.bits
    if sum(sizes) <= ALL_CASES.bit_length() - 1:
        every = np.arange(2 ** sum(sizes), dtype=np.uint64)
        return {
            "a": every % 2 ** sizes[0],
            "b": (every >> sizes[0]) % 2 ** sizes[1],
            "c": every >> sum(sizes[:2]),
        }
    draw = np.random.default_rng(0)
    codes = {
        k: draw.integers(0, 2**n, DRAWN_CASES, dtype=np.uint64) for k, n in zip("abc", sizes, strict=True)
    }
    half = DRAWN_CASES // 2
    near = product_of(a, b, accumulator, {k: v[:half] for k, v in codes.items()}).float()
    near = custom_fp.encode(-near, accumulator).numpy().astype(np.int64) & (2 ** sizes[2] - 1)
    moved = near + (draw.integers(-3, 4, half) << draw.integers(0, sizes[2] - 2, half))
    codes["c"][:half] = (moved % 2 ** sizes[2]).astype(np.uint64)
    return codes


def same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a mask of the equal values. Zeros with different signs are not equal, and all NaN are equal."""
    return (x == y) & (np.signbit(x) == np.signbit(y)) | np.isnan(x) & np.isnan(y)


def _signed(codes: np.ndarray, fmt: Format) -> torch.Tensor:
    """Return codes in the dtype that custom_fp.decode requires."""
    kind = custom_fp.encode(torch.zeros(1), fmt).numpy().dtype
    return torch.from_numpy(codes.astype(f"u{kind.itemsize}").view(kind))


def _values(codes: np.ndarray, fmt: Format) -> torch.Tensor:
    return custom_fp.decode(_signed(codes, fmt), fmt).double()


@cache
def _significands(bits_a: int, bits_b: int) -> int:
    return transistors(mac_verilog.significands(bits_a, bits_b))


@cache
def _add(accumulator: Format) -> int:
    return transistors(mac_verilog.add(accumulator))


def row(a: str, b: str, accumulator: str) -> dict[str, object]:
    """Return a row of the table. In the row, operand a is the narrower of the two formats."""
    if a.startswith("int"):
        return _row_of_integers(a, b, accumulator)
    narrow, wide = sorted((Format.parse(a), Format.parse(b)), key=lambda fmt: (fmt.bits, fmt.name))
    to = Format.parse(accumulator)
    if not to.has_inf:
        sys.exit(f"accumulator {to}: it must have an infinity, for values past the largest one")
    mac, cases = checked_mac(narrow, wide, to)
    significands = _significands(narrow.mantissa_bits + 1, wide.mantissa_bits + 1)
    parts = (significands, transistors(mac_verilog.multiply(narrow, wide, to)), _add(to))
    return dict(zip(COLUMNS, (narrow.name, wide.name, to.name, *parts, mac, cases), strict=True))


def _row_of_integers(a: str, b: str, accumulator: str) -> dict[str, object]:
    """Return a row for two's complement. `multiply` is the exact product."""
    x, y, z = *sorted((int(a[3:]), int(b[3:]))), int(accumulator[3:])
    if z <= x + y:
        sys.exit(
            f"int{z} is too narrow for sums of products of int{x} and int{y}. Choose a wider accumulator"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "unit.json")
        mac, gates = transistors(mac_verilog.integer_mac(x, y, z), file), Netlist(file)
        draw = np.random.default_rng(0)
        codes = {
            k: draw.integers(0, 2**n, DRAWN_CASES, dtype=np.uint64)
            for k, n in zip("abc", (x, y, z), strict=True)
        }
        got = gates(**codes)
    p, q = ((codes[k].astype(np.int64) << (64 - n)) >> (64 - n) for k, n in (("a", x), ("b", y)))
    if (wrong := got != ((codes["c"].astype(np.int64) + p * q) % 2**z).astype(np.uint64)).any():
        sys.exit(f"int{x} x int{y} + int{z}: {wrong.sum()} differences")
    multiply = transistors(mac_verilog.integer_multiply(x, y))
    parts = (multiply, multiply, transistors(mac_verilog.integer_add(z)), mac, DRAWN_CASES)
    return dict(zip(COLUMNS, (f"int{x}", f"int{y}", f"int{z}", *parts), strict=True))


def version() -> str:
    try:
        output = subprocess.run(["yosys", "-V"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        sys.exit("yosys is not installed: apt-get install yosys")
    return output.split(" (")[0].strip()


def read() -> tuple[str, list[dict[str, object]]]:
    """Return the first line of the table, which describes how it was made, and its rows.

    If there is no table, both are empty.
    """
    if not TABLE.exists():
        return "", []
    first, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    return first, list(csv.DictReader(lines))


def write(made_by: str, rows: Iterable[dict[str, object]]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        file.write(made_by + "\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "operands", nargs="*", help="e4m3, or two formats: e4m3xe5m2 (default: the whole table)"
    )
    parser.add_argument("--accumulator", help="fp32,bf16 (default: those of the table)")
    parser.add_argument(
        "--published", action="store_true", help="compare ratios of the table with published ones"
    )
    options = parser.parse_args()
    if options.published:
        print(compared(read()[1]))
        return
    made_by = f"# made_by: PYTHONPATH=scripts python -m research.area, {version()}, {RECIPE}; transistors"
    there, rows = read()
    if options.operands and there != made_by:
        sys.exit(f"{TABLE.name} was made differently ({there[2:]}). Make the whole table, without operands")
    found = {(r["a"], r["b"], r["accumulator"]): r for r in (rows if options.operands else ())}
    for name in options.operands or (*INTEGERS, *OPERANDS):
        a, _, b = name.partition("x")
        usual = (costs.integers(a, b or a),) if name.startswith("int") else ACCUMULATORS
        for accumulator in options.accumulator.split(",") if options.accumulator else usual:
            one = row(a, b or a, accumulator)
            found[one["a"], one["b"], one["accumulator"]] = one
            print(", ".join(f"{key} {value}" for key, value in one.items()), flush=True)
            write(made_by, found.values())


if __name__ == "__main__":
    main()
