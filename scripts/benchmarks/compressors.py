"""Time the compressors against copying memory: one worker's layer, compressed and decompressed; one table.

    python scripts/benchmarks/compressors.py                  # 2**22 values, 1 thread
    python scripts/benchmarks/compressors.py --values 25000000 --device cuda

Columns: milliseconds and copies (the time that copying the values takes) to compress and to decompress, bits a value.
The fastest of all turns counts. power_sgd is a whole step of one worker on a square layer, with error feedback: both
products, the sums of the factors, the result and what is left. Input: normal(0, 1) * 1e-3.
"""

import argparse
import platform

import torch
from numerics import time_in_turns

from cpdrun.comm.compressing import compressing, named
from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.workers import Workers

KINDS = {
    "rounded fp32": ("rounded", "fp32", {}),
    "rounded e4m3": ("rounded", "e4m3", {}),
    "top_k 1 %": ("top_k", "fp32", {"keep": 0.01}),
    "top_k 10 %": ("top_k", "fp32", {"keep": 0.1}),
    "random_k 1 %": ("random_k", "fp32", {"keep": 0.01}),
    "qsgd 8 bits": ("qsgd", "fp32", {"levels": 127}),
    "qsgd 4 bits": ("qsgd", "fp32", {"levels": 7}),
    "min_max 8 bits": ("min_max", "fp32", {"bits": 8}),
    "min_max 4 bits": ("min_max", "fp32", {"bits": 4}),
    "sign": ("sign", "fp32", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", type=int, default=2**22)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rank", type=int, default=2, help="of power_sgd")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    x_1xn = torch.randn(1, asked.values, generator=torch.Generator().manual_seed(0)).to(asked.device) * 1e-3
    out_1xn = torch.empty_like(x_1xn)
    copy_s = time_in_turns({"": lambda: out_1xn.copy_(x_1xn)}, asked.device, asked.repeats)[""]
    where = torch.cuda.get_device_name() if asked.device == "cuda" else platform.machine()
    print(
        f"{asked.values:,} values, {where}, torch {torch.__version__}, a copy takes {copy_s * 1e3:.2f} ms\n"
    )
    print(
        "| compressor | bits a value | compress ms | copies | decompress ms | copies |\n|---|---|---|---|---|---|"
    )
    for label, (name, fmt, knobs) in KINDS.items():
        c = named(name, fmt, aps=fmt != "fp32", **knobs)
        times = of_compressor(c, x_1xn, asked.device, asked.repeats)
        cells = [f"{s * 1e3:.1f} | {s / copy_s:.0f}" for s in times]
        bits = 8 * c.message_bytes(asked.values) / asked.values
        print(f"| {label} | {bits:.2f} | {' | '.join(cells)} |", flush=True)
    bits, step_s = of_power_sgd(asked.rank, x_1xn, asked.device, asked.repeats)
    print(
        f"| power_sgd rank {asked.rank} | {bits:.2f} | {step_s * 1e3:.1f} | {step_s / copy_s:.0f} | the step | |"
    )


def of_compressor(c: Compressor, x_1xn: torch.Tensor, device: str, repeats: int) -> list[float]:
    """Seconds to compress and to decompress."""
    data, n = c.compress(x_1xn, [("bench",)]), x_1xn.shape[1]
    calls = {"there": lambda: c.compress(x_1xn, [("bench",)]), "back": lambda: c.decompress(data, n)}
    return list(time_in_turns(calls, device, repeats).values())


def of_power_sgd(rank: int, x_1xn: torch.Tensor, device: str, repeats: int) -> tuple[float, float]:
    """Bits a value of both factors, and the seconds of a step."""
    side = int(x_1xn.shape[1] ** 0.5)
    stack = x_1xn[:, : side * side].view(1, side, side)
    out = torch.empty_like(stack[0])
    sync = compressing(
        "power_sgd", None, names=["layer"], world_size=1, knobs={"rank": rank}, group=Workers(1)
    )

    def step() -> None:
        sync.reduce_layers([0], [stack], step=0, epoch=0, out=[out])

    return 32 * 2 * side * rank / side**2, time_in_turns({"": step}, device, repeats)[""]


if __name__ == "__main__":
    main()
