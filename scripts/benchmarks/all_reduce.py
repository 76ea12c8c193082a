"""Seconds that synchronising gradients takes over a real slow link, end to end, rounding and packing
included.

    sudo python scripts/benchmarks/all_reduce.py                                   # 2 ranks, 1 Gbit/s, 25M values
    sudo python scripts/benchmarks/all_reduce.py --ranks 2 4 --rate 1gbit 100mbit
    python scripts/benchmarks/all_reduce.py --loopback                             # no link, no root
    sudo chrt -r 5 python scripts/benchmarks/all_reduce.py                         # beside other work on the machine

Each rank runs in a network namespace of its own, joined to a bridge by a veth pair that a token bucket
filter limits in both directions. Namespaces and links are removed at the end, whatever happens.

Two tables; seconds, ratios and bytes are medians of `--repeats`. `exchange`: one tensor of `--values` float32
values, summed in place. `training step`: forward, backward and exchange of a model with as many parameters,
under DistributedDataParallel. Bytes are those that rank 0's interface counted as sent (over loopback, everyone's)
and 2 (N-1)/N n k/8. The link also carries headers of TCP, IP and Ethernet: 4.6 % more at an MTU of 1500.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

from slow_links import found_by_ranks, sent_bytes

FORMATS = {"8 bits": "e4m3", "6 bits": "e3m2", "4 bits": "e2m1"}
BITS = {"fp32 all_reduce": 32, "bf16": 16, "8 bits": 8, "6 bits": 6, "4 bits": 4}
WARM_UPS = 3  # DDP rebuilds its buckets, PowerSGD begins in its third step


def measure(ranks: int, rate: str | None, options: argparse.Namespace) -> dict:
    """What rank 0 found, behind links of `rate` (None: loopback)."""
    arguments = ["--values", str(options.values), "--repeats", str(options.repeats)]
    return found_by_ranks(__file__, ranks, rate, arguments + ["--exchange-only"] * options.exchange_only)


# ---- one rank


def median_time(step: Callable[[], None], repeats: int) -> dict:
    """Median and best seconds of a step that all ranks start together; median of the bytes it sent."""
    import torch.distributed as dist

    seconds, sent = [], []
    for _ in range(WARM_UPS + repeats):
        dist.barrier()
        before, started = sent_bytes(), time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
        sent.append(sent_bytes() - before)
    seconds, sent = seconds[WARM_UPS:], sent[WARM_UPS:]
    return {"seconds": statistics.median(seconds), "best": min(seconds), "sent": statistics.median(sent)}


def exchanges(n_values: int, repeats: int) -> dict[str, dict]:
    import torch
    import torch.distributed as dist

    from cpdrun.comm import all_reduce_

    generator = torch.Generator().manual_seed(dist.get_rank())
    gradient = torch.randn(n_values, generator=generator) * 1e-3
    buffer = gradient.clone()
    half = torch.empty(n_values, dtype=torch.bfloat16)

    def fp32() -> None:
        dist.all_reduce(buffer)

    def bf16() -> None:
        half.copy_(buffer)
        dist.all_reduce(half)
        buffer.copy_(half)

    methods = {"fp32 all_reduce": fp32, "bf16": bf16}
    for label, fmt in FORMATS.items():
        methods[label] = lambda fmt=fmt: all_reduce_(buffer, fmt, aps=True)
    found = {}
    for label, step in methods.items():
        buffer.copy_(gradient)
        found[label] = median_time(step, repeats)
    return found


def training_steps(n_parameters: int, repeats: int) -> dict[str, dict]:
    """A DDP step of square linear layers: forward and backward of 16 samples, and the exchange."""
    import torch
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    from cpdrun.comm import ddp_hook

    width = 1000
    x = torch.randn(16, width)

    def powersgd(model: nn.Module) -> tuple:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        return state, powerSGD_hook.powerSGD_hook

    hooks: dict[str, Callable[[nn.Module], tuple] | None] = {
        "fp32 all_reduce": None,
        "bf16": lambda model: (None, default_hooks.bf16_compress_hook),
        "PowerSGD, rank 4": powersgd,
    }
    for label, fmt in FORMATS.items():
        hooks[label] = lambda model, fmt=fmt: ddp_hook(model, fmt, aps=True)
    found = {}
    for label, hook in hooks.items():
        torch.manual_seed(0)
        layers = [nn.Linear(width, width, bias=False) for _ in range(max(1, n_parameters // width**2))]
        # PyTorch's PowerSGD hook can deadlock over gloo where it has several buckets under way
        bucket_mb = 10_000 if label.startswith("PowerSGD") else 25
        model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_mb)
        if hook:
            model.register_comm_hook(*hook(model))

        def step(model: nn.Module = model) -> None:
            model.zero_grad(set_to_none=False)
            model(x).square().mean().backward()

        found[label] = median_time(step, repeats)
    return found


def be_rank(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    found = {"exchange": exchanges(options.values, options.repeats)}
    if not options.exchange_only:
        found["training step"] = training_steps(options.values, options.repeats)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


# ---- tables


def show(title: str, found: dict[str, dict], ranks: int, n_values: int) -> None:
    fp32, bf16 = found["fp32 all_reduce"]["seconds"], found["bf16"]["seconds"]
    heads = ("best s", "median s", "vs fp32", "vs bf16", "sent MB", "theory")
    print(f"\n{title}\n{'':18}" + "".join(f"{head:>10}" for head in heads))
    for label, row in found.items():
        theory = 2 * (ranks - 1) / ranks * n_values * BITS[label] / 8 if label in BITS else None
        seconds = row["seconds"]
        print(
            f"{label:18}{row['best']:10.3f}{seconds:10.3f}{fp32 / seconds:9.2f}x{bf16 / seconds:9.2f}x"
            f"{row['sent'] / 1e6:10.2f}" + (f"{theory / 1e6:10.2f}" if theory else "")
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", type=int, default=25_000_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--rate", nargs="+", default=["1gbit"], help="as tc spells it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loopback", action="store_true", help="no link: needs no root")
    parser.add_argument("--exchange-only", action="store_true", help="no second table")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        be_rank(options)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the link is removed
    if not options.loopback and os.geteuid() != 0:
        raise SystemExit("network namespaces need root: run it with sudo, or with --loopback")
    for ranks in options.ranks:
        for rate in [None] if options.loopback else options.rate:
            link = rate or "loopback"
            for title, found in measure(ranks, rate, options).items():
                show(
                    f"{title}: {ranks} ranks, {link}, {options.values:,} values", found, ranks, options.values
                )


if __name__ == "__main__":
    main()
