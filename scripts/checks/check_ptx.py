"""Compare all CUDA kernels, as compiled by NVRTC, with the CPU kernels, bit for bit. No GPU is needed.

    python scripts/checks/check_ptx.py [--architecture compute_90] [--rounds 1] [--seed 0]

The PTX code of the kernels is executed on the CPU (see kernels/tests/ptx/). The test cases are every rounding and
overflow mode with 40 formats, aligned and unaligned addresses, sizes around the limits of a grid, and formats with
scales along every axis. The script prints the number of compared values and of launched kernels. The exit status is 1
if a value differs or a kernel was not run.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import custom_fp
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels" / "tests" / "ptx"))
import ptx_cases
from custom_fp import cuda, nvrtc
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Overflow, Rounding
from ptx_device import Device, ptx_of

FORMATS = [
    "e5m2", "e4m3", "e3m4", "e3m0", "e4m0", "e2m1", "e1m2", "e1m0", "e5m10", "e6m9", "e5m23", "e7m11", "bf16",
    "fp32", "tf32", "e8m0", "e8m3", "e8m16", "e4m3fn", "e5m2fn", "e3m0fn", "e1m3fn", "e1m0fn", "e8m0fn", "e2m1fn",
    "e2m3fn", "e3m2fn", "e4m3b11fn", "e4m3b-100", "e2m2b127", "e5m12fn", "e5m21", "e8m22", "e4m3fnuz", "e5m2fnuz",
    "e3m0fnuz", "e4m3fo", "ue5m3", "ue4m3", "ue5m6",
]  # fmt: skip
SCALED = [
    "mxfp8_e4m3", "mxfp4_rceil", "mxint8", "nvfp4", "nvfp4_2d", "nvfp4_4over6", "nvint4", "fp8_b64", "int8_b128",
    "fp8_tensor", "int8_channel",
]  # fmt: skip
DOTS = [
    "h100_fp8", "v100_fp16", "a100_bf16", "fp32-fused", "fp16-stochastic", "fp16-nearest_away", "mi250_bf16",
    "mi300_bf16", "mi300_fp8", "b200_mxfp8", "b200_nvfp4", "posit16-exact", "takum8-fused-stochastic",
    "e4m3fnuz-toward_zero-fused",
]  # fmt: skip
TABLES = [
    "posit8", "takum12", "p3109_k8p3se", "hif8",
]  # fmt: skip
NEAREST = [
    "nf4_b64", "dynamic_tree", "dynamic_map_b16", "int8_affine", "int4_affine_b32", "int8_affine_channel",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="compute_90")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="number of repetitions, with other values and sizes (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        device = Device(ptx_of(cuda.KERNELS, options.architecture), nvrtc.source(), Path(folder), level="-O1")
        print(
            f"{len(device.parameters)} kernels compiled in {time.perf_counter() - started:.0f} s", flush=True
        )
        to = ptx_cases.Compared(device, random.Random(options.seed))
        for _ in range(options.rounds):
            compare_all(to)
    print("\n| operator | values |\n| --- | --- |")
    print("\n".join(f"| {what} | {count:,} |" for what, count in to.values.items()))
    idle = set(device.parameters) - set(device.launches)
    print(f"\n{sum(device.launches.values())} launches; kernels that were not run: {sorted(idle) or 'none'}")
    print(
        f"{time.perf_counter() - started:.0f} s; number of calls whose results have other bits: {len(to.wrong)}",
        *to.wrong[:40],
        sep="\n",
    )
    return int(bool(to.wrong or idle))


def compare_all(to: ptx_cases.Compared) -> None:
    """Compare every operator once."""
    words = ptx_cases.rules([str(r) for r in Rounding], [str(o) for o in Overflow])
    ptx_cases.whole(to)
    ptx_cases.fused_sum(to)
    for name in FORMATS:
        fmt = Format.parse(name)
        ptx_cases.codes(to, fmt)
        for word in words:
            ptx_cases.elements(to, fmt, word)
        for word in to.dice.sample(words, 6):
            ptx_cases.sums(to, fmt, word)
        if fmt.bits % 4 == 0:
            ptx_cases.products(to, fmt)
    for name in DOTS:
        ptx_cases.dots(to, name)
    for name in TABLES:
        fmt = custom_fp.parse(name)
        ptx_cases.codes(to, fmt)
        ptx_cases.products(to, fmt)
        for word in to.dice.sample(words, 8):
            ptx_cases.elements(to, fmt, word)
            ptx_cases.sums(to, fmt, word)
    for name in SCALED:
        for word in ptx_cases.rules([str(r) for r in Rounding], ["infinity"]):
            ptx_cases.scaled(to, name, word)
    for name in NEAREST:
        ptx_cases.scaled(to, name, words[0])


if __name__ == "__main__":
    sys.exit(main())
