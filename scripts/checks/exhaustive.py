"""Compare custom_fp.quantize with the reference, bit for bit, for all 2**32 float32 numbers.

    python scripts/checks/exhaustive.py                       # e5m2, e4m3, e4m3fn and e3m0; minutes for each
    python scripts/checks/exhaustive.py --output results/reference/numerics/exhaustive.md e3m2

The script supports scalar formats of every family (e4m3fnuz, e4m3fo, ue5m3), with any rounding that uses no random
numbers (--rounding to_odd). check_tables.py checks formats that are implemented as tables (posits, P3109, ...).

The reference (kernels/custom_fp/reference.py) works in float64 with torch's own operations and shares no code with the
compiled kernels. The exit status is 1 if a single result differs.
"""

import argparse
import sys
import time
from pathlib import Path

import custom_fp
import torch
from custom_fp import reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Overflow, Rounding, Rule

DETERMINISTIC = [str(word) for word in Rounding if word is not Rounding.STOCHASTIC]
CHUNK = (
    1 << 15
)  # the number of values per call, so that the arrays of the reference fit into the processor's cache


def differences(fmt: Format, rounding: str, overflow: str) -> int:
    """Return the number of float32 inputs for which the results differ."""
    rule = Rule(rounding, overflow)
    expected, got = torch.empty(CHUNK), torch.empty(CHUNK)
    wrong = 0
    for start in range(-(2**31), 2**31, CHUNK):
        x = torch.arange(start, start + CHUNK, dtype=torch.int64).to(torch.int32).view(torch.float32)
        custom_fp.quantize(x, fmt, rounding=rounding, overflow=overflow, out=got)
        reference.quantize(x, fmt, rule, expected)
        if not torch.equal(got.view(torch.int32), expected.view(torch.int32)):
            wrong += int((got.view(torch.int32) != expected.view(torch.int32)).sum())
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("formats", nargs="*", default=["e5m2", "e4m3", "e4m3fn", "e3m0"])
    parser.add_argument("--overflow", default="infinity", choices=[*map(str, Overflow)])
    parser.add_argument("--rounding", default="nearest_even", choices=DETERMINISTIC)
    parser.add_argument("--output", type=Path, help="write the table to this file as well")
    options = parser.parse_args()

    rows = [
        f"quantize({options.rounding}, {options.overflow}), backend {custom_fp.backend()}, and the reference, "
        "on all 2**32 float32 inputs:",
        "",
        "| format | inputs | different | seconds |",
        "| --- | --- | --- | --- |",
    ]
    print("\n".join(rows))
    total = 0
    for name in options.formats:
        started = time.monotonic()
        wrong = differences(Format.parse(name), options.rounding, options.overflow)
        total += wrong
        rows.append(f"| {name} | {2**32} | {wrong} | {time.monotonic() - started:.0f} |")
        print(rows[-1], flush=True)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(rows) + "\n")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
