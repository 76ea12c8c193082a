"""Determine which path the matrix product of each accumulator takes, and how fast it is in one thread.

    python scripts/benchmarks/accumulators.py --output results/reference/numerics/accumulators.md
    python scripts/benchmarks/accumulators.py h100_fp8 fp16-fused "e5m10 of e4m3fn"

The product of two matrices of 128 x K and K x 128 values is computed four times: with all paths enabled, with aligned
blocks only (csrc/accumulators/cpu_blocks.h), with panels only (cpu_panel.h), and with the general path only (dot.h).
The path of an accumulator is the one that is faster than the general path. These calls and torch.mm are timed in turns,
and the fastest call of each counts. Operands are normally distributed values, rounded to the formats of the
accumulator, to FORMAT if the name contains `of FORMAT`, or else to bf16. The script takes about two minutes.
"""

from collections.abc import Iterator

import custom_fp
import torch
from custom_fp import _native
from custom_fp.accumulator import Accumulator
from harness import Report, describe_machine, make_parser, time_fastest

SIZE, DEPTHS = 128, (128, 1024)
NAMES = (
    *("h100_fp8", "l40_fp8", "deepseek_v3", "h100_fp8_to_fp16", "b200_fp8", "b200_fp4"),
    *("h100_fp16", "h100_bf16", "h100_fp16_to_fp16", "a100_fp16", "a100_bf16", "a100_tf32", "v100_fp16"),
    *("mi100_fp16", "mi100_bf16", "mi100_fp32", "mi250_fp16", "mi300_fp16", "mi300_fp8"),
    *("b200_mxfp8", "b200_nvfp4"),
    *("fp32-exact", "fp16-exact", "posit16-exact of e4m3fn", "fp16-block_8 of e4m3fn"),
    *("fp16-pairwise", "fp16-chunk_64", "e4m3fn-saturate", "fp16-toward_zero"),
    *("fp16-fused", "bf16-fused", "fp32-fused", "e8m13-fused"),
    *("fp16-stochastic_8", "fp16-stochastic", "fp16-nearest_away", "e8m13-pairwise", "posit16-fused"),
)
PATHS = {
    "all": (True, True),
    "aligned blocks": (True, False),
    "panels": (False, True),
    "general": (False, False),
}
SPEEDUP = 2  # A path whose speedup is less than this factor was not used.


def seconds(name: str, depth: int, repeats: int) -> dict[str, float]:
    """Return the time of torch.mm and of an accumulator's product by each path."""
    text, _, of = name.partition(" of ")
    how = Accumulator.parse(text)
    a_format, b_format = (of, of) if of else how.operand_formats or ("bf16", "bf16")
    g = torch.Generator().manual_seed(0)
    a = custom_fp.quantize(torch.randn(SIZE, depth, generator=g), a_format, axis=1)
    b = custom_fp.quantize(torch.randn(depth, SIZE, generator=g), b_format, axis=0)

    def product(path: str) -> None:
        _native.use_paths(*PATHS[path])
        custom_fp.matmul(a, b, accumulator=how, seed=0 if how.is_stochastic else None)

    calls = {"torch.mm": lambda: torch.mm(a, b)}
    calls |= {path: lambda path=path: product(path) for path in PATHS}
    try:
        return time_fastest(calls, repeats)
    finally:
        _native.use_paths(*PATHS["all"])


def rows(names: list[str], repeats: int) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table."""
    for name in names:
        by_depth = [seconds(name, depth, repeats) for depth in DEPTHS]
        first = by_depth[0]
        fastest = min(("aligned blocks", "panels"), key=first.__getitem__)
        path = fastest if SPEEDUP * first[fastest] < first["general"] else "general"
        cells = []
        for s in by_depth:
            cells += [f"{s['all'] / s['torch.mm']:.1f}", f"{s['general'] / s['torch.mm']:.0f}"]
            cells.append(f"{s['general'] / s['all']:.0f}")
        yield name, path, *cells


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=7, help="number of turns (default: 7)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = [f"K = {depth}: {column}" for depth in DEPTHS for column in ("time", "by dot.h", "gain")]
    with Report(options.output) as report:
        report.add(f"{describe_machine(threads=1)}, {_native.isa()}")
        report.add(
            f"Products of {SIZE} x K and K x {SIZE} values. Times are multiples of the time of torch.mm in float32.\n"
            "`by dot.h` is the time by the general path, and `gain` how many times longer that takes."
        )
        table_rows = rows(options.names, options.repeats)
        report.add_table(["accumulator", "path", *heads], table_rows, text_columns=2)


if __name__ == "__main__":
    main()
