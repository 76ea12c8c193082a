"""Matrix products by accumulators beside torch.mm, in one thread:

    python scripts/bench_accumulators.py [NAME ...] [--size 256] [--repeat 7] [--json]

A row an accumulator: operands are normal values rounded to what it is for (bf16 where it does not say), so that the
ways are taken that a run takes. Times are the least of all, torch.mm's measured in turns with each row's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import custom_fp
import torch
from custom_fp.accumulator import Accumulator, read

NAMES = (
    *("e5m10", "bf16", "e4m3", "e5m10 of e4m3fn", "fp32", "fp32-fused", "fp16-pairwise", "mi100_fp16"),
    *(
        "fp32-exact",
        "fp32-exact of e4m3fn",
        "fp16-stochastic_8",
        "bf16-fused",
        "fp16-chunk_64",
        "e4m3fn-saturate",
    ),
    *("v100_fp16", "a100_fp16", "a100_bf16", "a100_tf32", "h100_fp16", "h100_bf16", "h100_fp16_to_fp16"),
    *("h100_fp8", "deepseek_v3", "b200_fp8"),
)


def least(call: Callable[[], object], budget_s: float) -> float:
    """Seconds of the quickest call within so many seconds, three calls or more."""
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def row(name: str, size: int, repeat: int) -> dict[str, float | str]:
    """Of `ACCUMULATOR` or `ACCUMULATOR of FORMAT`, the operands' format."""
    text, _, of = name.partition(" of ")
    how = read(text)[0]
    of_machine = how.operands if isinstance(how, Accumulator) and how.operands else ("bf16", "bf16")
    formats = (of, of) if of else of_machine
    g = torch.Generator().manual_seed(0)
    a, b = (
        custom_fp.quantize(torch.randn(size, size, generator=g), fmt, axis=1 - i)
        for i, fmt in enumerate(formats)
    )
    own, torchs = [], []
    for _ in range(repeat):
        torchs.append(least(lambda: torch.mm(a, b), 0.02))
        own.append(least(lambda: custom_fp.matmul(a, b, accumulator=text), 0.02))
    return {
        "accumulator": name,
        "operands": " x ".join(map(str, formats)),
        "torch_mm_ms": 1e3 * min(torchs),
        "ms": 1e3 * min(own),
        "percent_of_torch_mm": 100 * min(torchs) / min(own),
        "gmac_per_s": size**3 / min(own) / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--size", type=int, default=256, help="of square matrices")
    parser.add_argument("--repeat", type=int, default=7, help="turns of each row")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row(name, given.size, given.repeat) for name in given.names]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print("| accumulator | operands | torch.mm, ms | ms | % of torch.mm | GMAC/s |")
    print("|---|---|---:|---:|---:|---:|")
    for r in rows:
        print(
            f"| {r['accumulator']} | {r['operands']} | {r['torch_mm_ms']:.3f} | {r['ms']:.3f} "
            f"| {r['percent_of_torch_mm']:.1f} | {r['gmac_per_s']:.2f} |"
        )


if __name__ == "__main__":
    main()
