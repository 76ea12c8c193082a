"""Seconds of sharded training's exchange over a real slow link, end to end: reduce-scatter of gradients and all-gather
of weights, rounding and packing included; and of a whole FSDP2 step.

    sudo python scripts/benchmarks/sharded_step.py                                # 2 and 4 ranks, 1 Gbit/s, 25M values
    sudo python scripts/benchmarks/sharded_step.py --ranks 2 --output table.md
    sudo chrt -r 5 python scripts/benchmarks/sharded_step.py                      # beside other work on the machine
    python scripts/benchmarks/sharded_step.py --loopback                          # no link, no root

Ranks run in network namespaces behind token buckets (slow_links.py), and on machines with other work in turns: each
repeat times every method once. Seconds and ratios are medians.

`reduce-scatter + all-gather`: gradients and weights of square layers, as FSDP cuts them; fp32 and bf16 are torch's own,
whose reduce-scatter over gloo sends as much as an all-reduce; "fp32, direct" is ours, nearly all of it the wire.
`FSDP2 step`: forward, backward and exchange of those layers as linear ones, five a `fully_shard` call, gathered once a
step; bf16 is torch's, by MixedPrecisionPolicy for weights and gradients. Theory is 2 (N-1)/N n k/8 bytes.
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
from pathlib import Path
from typing import Any

from slow_links import found_by_ranks, sent_bytes

BITS = {"fp32": 32, "fp32, direct": 32, "bf16": 16, "8 bits": 8, "4 bits": 4}
FORMATS = {"fp32, direct": "fp32", "8 bits": "e4m3", "4 bits": "e2m1"}
WIDTH, TOGETHER, WARM_UPS = 1000, 5, 2

Step = Callable[[], Any]


def in_turns(methods: dict[str, Step], repeats: int) -> dict[str, dict[str, float]]:
    """Median seconds and bytes sent of each."""
    import torch.distributed as dist

    seconds: dict[str, list[float]] = {label: [] for label in methods}
    sent: dict[str, list[int]] = {label: [] for label in methods}
    for turn in range(WARM_UPS + repeats):
        for label, step in methods.items():
            dist.barrier()
            before, started = sent_bytes(), time.perf_counter()
            step()
            if turn >= WARM_UPS:
                seconds[label].append(time.perf_counter() - started)
                sent[label].append(sent_bytes() - before)
    return {
        label: {
            "seconds": statistics.median(seconds[label]),
            "best": min(seconds[label]),
            "sent": statistics.median(sent[label]),
        }
        for label in methods
    }


def exchanges(n_values: int) -> dict[str, Step]:
    import torch
    import torch.distributed as dist

    from cpdrun.comm import AllReduceSync
    from cpdrun.comm.sharded.gather import Gather, Weights
    from cpdrun.comm.sums.scaling import APS
    from cpdrun.comm.sums.summations.base import Shards
    from cpdrun.comm.wire.cut import by_rows
    from cpdrun.comm.workers import Workers

    rank, N = dist.get_rank(), dist.get_world_size()
    layers = max(1, n_values // WIDTH**2)
    part = WIDTH // N * WIDTH
    generator = torch.Generator().manual_seed(rank)
    gradients_NxS = torch.randn(N, layers * part, generator=generator) * 1e-3
    weights_NxS = torch.randn(N, layers * part, generator=generator) * 0.03
    mine_S, master_S = torch.zeros(layers * part), weights_NxS[rank].clone()
    halves = [torch.empty(N, layers * part, dtype=torch.bfloat16) for _ in range(2)]
    half_S = torch.empty(layers * part, dtype=torch.bfloat16)
    shapes = [(WIDTH // N * N, WIDTH)] * layers
    cut, numels = by_rows(shapes, N), tuple(rows * columns for rows, columns in shapes)
    names = [str(p) for p in range(layers)]

    def fp32() -> None:
        dist.reduce_scatter_tensor(mine_S, gradients_NxS.view(-1))
        dist.all_gather_into_tensor(weights_NxS.view(-1), master_S)

    def bf16() -> None:
        halves[0].copy_(gradients_NxS)
        dist.reduce_scatter_tensor(half_S, halves[0].view(-1))
        mine_S.copy_(half_S)
        half_S.copy_(master_S)
        dist.all_gather_into_tensor(halves[1].view(-1), half_S)
        weights_NxS.copy_(halves[1])

    def few(fmt: str) -> Step:
        scaling = None if fmt == "fp32" else APS()
        sync = AllReduceSync(format=fmt, world_size=N, parameter_names=names, scaling=scaling)
        gather = Gather(fmt, Workers(N, rank, N), scaled=True)
        shards = Shards(cut, numels, apart=True)

        def place(owner: int, piece: Any) -> torch.Tensor:
            begin = piece.layer * part + piece.start - owner * part
            return weights_NxS[owner, begin : begin + piece.numel]

        def step() -> None:
            stacks = [g.unsqueeze(0) for g in gradients_NxS.split(part, dim=1)]
            out = list(mine_S.split(part))
            sync.reduce_layers(range(layers), stacks, step=0, epoch=0, out=out, shards=shards)
            mine = list(master_S.split(part))
            gather.run(Weights(names, mine, numels, cut, place))

        return step

    return {"fp32": fp32, "bf16": bf16} | {label: few(fmt) for label, fmt in FORMATS.items()}


def steps(n_values: int) -> dict[str, Step]:
    import torch
    from torch import nn
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from cpdrun.comm import fsdp_comm

    x = torch.randn(16, WIDTH)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)

    def step_of(policy: MixedPrecisionPolicy, fmt: str | None = None) -> Step:
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(max(1, n_values // WIDTH**2))]
        groups = [nn.Sequential(*layers[i : i + TOGETHER]) for i in range(0, len(layers), TOGETHER)]
        model = nn.Sequential(*groups)
        for group in model:
            fully_shard(group, mp_policy=policy, reshard_after_forward=False)
        fully_shard(model, mp_policy=policy, reshard_after_forward=False)
        if fmt == "fp32":
            fsdp_comm(model, fmt)
        elif fmt:
            fsdp_comm(model, fmt, aps=True, gather=fmt)

        def step() -> None:
            model(x).float().square().mean().backward()
            for parameter in model.parameters():
                parameter.grad = None

        return step

    plain = MixedPrecisionPolicy()
    return {"fp32": step_of(plain), "bf16": step_of(half)} | {
        label: step_of(plain, fmt) for label, fmt in FORMATS.items()
    }


def be_rank(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    found = {"reduce-scatter + all-gather": in_turns(exchanges(options.values), options.repeats)}
    if not options.exchange_only:
        found["FSDP2 step"] = in_turns(steps(options.values), options.repeats)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measure(ranks: int, rate: str | None, options: argparse.Namespace) -> dict[str, dict]:
    """What rank 0 found, behind links of `rate` (None: loopback)."""
    arguments = ["--values", str(options.values), "--repeats", str(options.repeats)]
    return found_by_ranks(__file__, ranks, rate, arguments + ["--exchange-only"] * options.exchange_only)


def table(title: str, found: dict[str, dict], ranks: int, n_values: int) -> str:
    """As Markdown."""
    fp32, direct, bf16 = (found[label]["seconds"] for label in ("fp32", "fp32, direct", "bf16"))
    heads = ("", "s", "best s", "of fp32", "of direct", "of bf16", "sent MB", "theory MB")
    lines = [f"### {title}", "", f"| {' | '.join(heads)} |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for label, row in found.items():
        seconds, theory = row["seconds"], 2 * (ranks - 1) / ranks * n_values * BITS[label] / 8
        ratios = " | ".join(f"{other / seconds:.2f} x" for other in (fp32, direct, bf16))
        lines.append(
            f"| {label} | {seconds:.3f} | {row['best']:.3f} | {ratios} | {row['sent'] / 1e6:.1f} | {theory / 1e6:.1f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", type=int, default=25_000_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", nargs="+", default=["1gbit"], help="as tc spells it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loopback", action="store_true", help="no link: needs no root")
    parser.add_argument("--exchange-only", action="store_true", help="no second table")
    parser.add_argument("--output", type=Path, help="the tables, as Markdown")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        be_rank(options)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the link is removed
    if not options.loopback and os.geteuid() != 0:
        raise SystemExit("network namespaces need root: run it with sudo, or with --loopback")
    tables = []
    for ranks in options.ranks:
        for rate in [None] if options.loopback else options.rate:
            for title, found in measure(ranks, rate, options).items():
                where = f"{title}: {ranks} ranks, {rate or 'loopback'}, {options.values:,} values"
                tables.append(table(where, found, ranks, options.values))
                print(tables[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(tables))


if __name__ == "__main__":
    main()
