"""Time the compressors on one worker's layer, compared with copying it.

    python scripts/benchmarks/compressors.py                  # 2**22 values, 1 thread
    python scripts/benchmarks/compressors.py --values 25000000 --device cuda

The columns are the bits per value, and the milliseconds to compress and to decompress, each also as a multiple of the
time to copy the values. For power_sgd, a whole step of one worker on a square layer with error feedback is timed. It
includes both products, the sums of the factors, the result and the residual. Inputs are normal(0, 1) * 1e-3. The script
takes about a minute.
"""

import torch
from harness import Report, describe_machine, make_parser, make_table, time_fastest

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.script.compressor_names import compressor_by_name, make_compressed_sync
from cpdrun.comm.workers import Workers

HEADS = ("compressor", "bits a value", "compress ms", "copies", "decompress ms", "copies")
KINDS = {
    "rounded fp32": ("rounded", "fp32", {}),
    "rounded e4m3": ("rounded", "e4m3", {}),
    "top_k 1%": ("top_k", "fp32", {"keep": 0.01}),
    "top_k 10%": ("top_k", "fp32", {"keep": 0.1}),
    "random_k 1%": ("random_k", "fp32", {"keep": 0.01}),
    "qsgd 8 bits": ("qsgd", "fp32", {"levels": 127}),
    "qsgd 4 bits": ("qsgd", "fp32", {"levels": 7}),
    "min_max 8 bits": ("min_max", "fp32", {"bits": 8}),
    "min_max 4 bits": ("min_max", "fp32", {"bits": 4}),
    "sign": ("sign", "fp32", {}),
}


def time_compressor(c: Compressor, x_1xn: torch.Tensor, device: str, repeats: int) -> list[float]:
    """Return the seconds to compress and to decompress."""
    data, n = c.compress(x_1xn, [("bench",)]), x_1xn.shape[1]
    calls = {
        "compress": lambda: c.compress(x_1xn, [("bench",)]),
        "decompress": lambda: c.decompress(data, n),
    }
    return list(time_fastest(calls, repeats, device=device).values())


def time_power_sgd(rank: int, x_1xn: torch.Tensor, device: str, repeats: int) -> tuple[float, float]:
    """Return the bits per value of both factors, and the seconds of a step."""
    side = int(x_1xn.shape[1] ** 0.5)
    stack = x_1xn[:, : side * side].view(1, side, side)
    out = torch.empty_like(stack[0])
    sync = make_compressed_sync(
        "power_sgd", None, names=["layer"], world_size=1, options={"rank": rank}, group=Workers(1)
    )

    def step() -> None:
        sync.reduce_layers([0], [stack], step=0, epoch=0, out=[out])

    return 32 * 2 * side * rank / side**2, time_fastest({"": step}, repeats, device=device)[""]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--values", type=int, default=2**22, help="number of values (default: 2**22)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--repeats", type=int, default=5, help="how many times each call is timed (default: 5)"
    )
    parser.add_argument("--rank", type=int, default=2, help="rank of power_sgd (default: 2)")
    options = parser.parse_args()
    device, repeats = options.device, options.repeats
    torch.set_num_threads(1)
    x_1xn = torch.randn(1, options.values, generator=torch.Generator().manual_seed(0)).to(device) * 1e-3
    out_1xn = torch.empty_like(x_1xn)
    copy_s = time_fastest({"": lambda: out_1xn.copy_(x_1xn)}, repeats, device=device)[""]
    rows = []
    for label, (name, fmt, knobs) in KINDS.items():
        c = compressor_by_name(name, fmt, aps=fmt != "fp32", **knobs)
        times = time_compressor(c, x_1xn, device, repeats)
        cells = [text for s in times for text in (f"{s * 1e3:.1f}", f"{s / copy_s:.0f}")]
        rows.append((label, f"{8 * c.message_bytes(options.values) / options.values:.2f}", *cells))
    bits, step_s = time_power_sgd(options.rank, x_1xn, device, repeats)
    cells = (f"{step_s * 1e3:.1f}", f"{step_s / copy_s:.0f}")
    rows.append((f"power_sgd rank {options.rank}", f"{bits:.2f}", *cells, "the whole step", ""))
    with Report(options.output) as report:
        report.add(
            f"{options.values:,} values, {describe_machine(device)}; a copy takes {copy_s * 1e3:.2f} ms"
        )
        report.add(make_table(HEADS, rows))


if __name__ == "__main__":
    main()
