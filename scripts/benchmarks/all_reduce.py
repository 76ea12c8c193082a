"""Time the synchronization of gradients over a slow link, including rounding and packing.

    sudo python scripts/benchmarks/all_reduce.py                                   # 2 ranks, 1 Gbit/s, 25M values
    sudo python scripts/benchmarks/all_reduce.py --ranks 2 4 --rate 1gbit 100mbit
    python scripts/benchmarks/all_reduce.py --loopback                             # without links, so no root is needed
    sudo chrt -r 5 python scripts/benchmarks/all_reduce.py                         # next to other work on the machine

Each rank runs in a network namespace behind a token bucket (slow_links.py). The first table contains the times to sum
one tensor of `--values` float32 values in place. The second one contains the times of a training step (forward,
backward and exchange) of a model with `--values` parameters under DistributedDataParallel. Seconds, ratios and bytes
are medians, and seconds are those of the slowest rank.

`sent` is the number of bytes that the interface of rank 0 has sent (over loopback, the number of all ranks). `theory`
is 2 (N-1)/N n k/8. Headers of TCP, IP and Ethernet add 4.6% at an MTU of 1500. The script takes about ten minutes. The
results are in results/reference/wire.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping

from harness import Report, make_parser, make_table, time_ranks
from slow_links import add_link_arguments, parse_arguments, run_ranks, sent_bytes

FORMATS = {"8 bits": "e4m3", "6 bits": "e3m2", "4 bits": "e2m1"}
BITS = {"fp32 all_reduce": 32, "bf16": 16, "8 bits": 8, "6 bits": 6, "4 bits": 4}
WARM_UPS = (
    3  # DDP rebuilds its buckets after the first step, and PowerSGD begins to compress in its third step.
)


def time_exchanges(n_values: int, repeats: int) -> dict[str, list[tuple[float, int]]]:
    """Time the sum of one float32 vector over all ranks, by each method."""
    import torch
    import torch.distributed as dist

    from cpdrun.comm import all_reduce_

    generator = torch.Generator().manual_seed(dist.get_rank())
    gradient = torch.randn(n_values, generator=generator) * 1e-3
    buffer = gradient.clone()
    half = torch.empty(n_values, dtype=torch.bfloat16)

    def sum_bf16() -> None:
        half.copy_(buffer)
        dist.all_reduce(half)
        buffer.copy_(half)

    methods = {"fp32 all_reduce": lambda: dist.all_reduce(buffer), "bf16": sum_bf16}
    for label, fmt in FORMATS.items():
        methods[label] = lambda fmt=fmt: all_reduce_(buffer, fmt, aps=True)
    return time_ranks(methods, repeats, warm_ups=WARM_UPS, count=sent_bytes)


def time_training_steps(n_parameters: int, repeats: int) -> dict[str, list[tuple[float, int]]]:
    """Time training steps (forward, backward and exchange) of square linear layers with a batch of 16 samples.

    There is one model for each communication hook. They are timed one after the other.
    """
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
    for label, hook in hooks.items():  # Test one hook at a time, because six models need too much memory.
        torch.manual_seed(0)
        layers = [nn.Linear(width, width, bias=False) for _ in range(max(1, n_parameters // width**2))]
        # PyTorch's PowerSGD hook can deadlock over gloo if several buckets are exchanged at the same time.
        bucket_mb = 10_000 if label.startswith("PowerSGD") else 25
        model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_mb)
        if hook:
            model.register_comm_hook(*hook(model))

        def step(model: nn.Module = model) -> None:
            model.zero_grad(set_to_none=False)
            model(x).square().mean().backward()

        found |= time_ranks({label: step}, repeats, warm_ups=WARM_UPS, count=sent_bytes)
    return found


def run_rank(options: argparse.Namespace) -> dict[str, dict]:
    found = {"exchange": time_exchanges(options.values, options.repeats)}
    if not options.exchange_only:
        found["training step"] = time_training_steps(options.values, options.repeats)
    return found


def exchange_table(
    found: Mapping[str, list], references: list[str], bits: Mapping[str, int], ranks: int, n_values: int
) -> str:
    """Return a table with one row for each method.

    Args:
        found: The seconds and bytes of each turn of each method, from `time_ranks`.
        references: The methods that all others are compared with.
        bits: The number of bits per value of each method, for the bytes in theory.
        ranks: The number of ranks.
        n_values: The number of values.
    """
    medians = {label: statistics.median(s for s, _ in turns) for label, turns in found.items()}
    rows = []
    for label, turns in found.items():
        sent = statistics.median(count for _, count in turns)
        theory = 2 * (ranks - 1) / ranks * n_values * bits[label] / 8 if label in bits else None
        rows.append(
            (
                label,
                f"{medians[label]:.3f}",
                f"{min(s for s, _ in turns):.3f}",
                *(f"{medians[name] / medians[label]:.2f} x" for name in references),
                f"{sent / 1e6:.1f}",
                f"{theory / 1e6:.1f}" if theory else "",
            )
        )
    heads = ("method", "s", "best s", *(f"speed of {name}" for name in references), "sent MB", "theory MB")
    return make_table(heads, rows)


def run_on_links(
    report: Report, script: str, options: argparse.Namespace, references: list[str], bits: Mapping[str, int]
) -> None:
    """Add the tables of a benchmark for every number of ranks and every rate."""
    arguments = [f"--values={options.values}", f"--repeats={options.repeats}"]
    arguments += ["--exchange-only"] * options.exchange_only
    for ranks in options.ranks:
        for rate in options.rate:
            for title, found in run_ranks(script, ranks, rate, arguments).items():
                report.add(f"### {title}: {ranks} ranks, {rate}, {options.values:,} values")
                report.add(exchange_table(found, references, bits, ranks, options.values))


def add_exchange_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--values", type=int, default=25_000_000, help="number of values (default: 25 million)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="how many times each method is timed (default: 5)"
    )
    parser.add_argument("--exchange-only", action="store_true", help="no training steps")


def main() -> None:
    parser = make_parser(__doc__)
    add_link_arguments(parser, ranks=[2], rates=["1gbit"])
    add_exchange_arguments(parser)
    options = parse_arguments(parser, run_rank)
    with Report(options.output) as report:
        run_on_links(report, __file__, options, ["fp32 all_reduce", "bf16"], BITS)


if __name__ == "__main__":
    main()
