"""Time the exchanges of sharded training over a slow link, including rounding and packing.

    sudo python scripts/benchmarks/sharded_step.py                      # 2 and 4 ranks, 1 Gbit/s, 25M values
    sudo python scripts/benchmarks/sharded_step.py --ranks 2 --output table.md
    sudo chrt -r 5 python scripts/benchmarks/sharded_step.py            # next to other work on the machine
    python scripts/benchmarks/sharded_step.py --loopback                # without links, so no root is needed

Each rank runs in a network namespace behind a token bucket (slow_links.py). Seconds and ratios are medians, and seconds
are those of the slowest rank.

`reduce-scatter + all-gather`: gradients and weights of square layers, as FSDP splits them. fp32 and bf16 are torch's
own implementations. torch's reduce-scatter over gloo sends as many bytes as an all-reduce. "fp32, direct" is cpdrun's
implementation, which spends nearly all of its time on the link.

`FSDP2 step`: forward, backward and exchange of such layers, with five layers per `fully_shard` call, gathered once per
step. bf16 is torch's MixedPrecisionPolicy for weights and gradients.

`theory` is 2 (N-1)/N n k/8 bytes. The script takes about 20 minutes. The result is results/reference/wire/sharded.md.
"""

import argparse
from collections.abc import Callable
from typing import Any

from all_reduce import add_exchange_arguments, run_on_links
from harness import Report, make_parser, time_ranks
from slow_links import add_link_arguments, parse_arguments, sent_bytes

BITS = {"fp32": 32, "fp32, direct": 32, "bf16": 16, "8 bits": 8, "4 bits": 4}
FORMATS = {"fp32, direct": "fp32", "8 bits": "e4m3", "4 bits": "e2m1"}
WIDTH, LAYERS_PER_GROUP, WARM_UPS = 1000, 5, 2

Step = Callable[[], Any]


def make_exchanges(n_values: int) -> dict[str, Step]:
    """Return, for each method, a function that reduce-scatters gradients and all-gathers weights."""
    import torch
    import torch.distributed as dist

    from cpdrun.comm import AllReduceSync
    from cpdrun.comm.sums.scaling import APS
    from cpdrun.comm.sums.summation import Shards
    from cpdrun.comm.sync.sharded_sync import WeightGather, Weights
    from cpdrun.comm.wire.message_layout import shard_by_rows
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
    sharding, numels = shard_by_rows(shapes, N), tuple(rows * columns for rows, columns in shapes)
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

    def make_exchange(fmt: str) -> Step:
        scaling = None if fmt == "fp32" else APS()
        sync = AllReduceSync(format=fmt, world_size=N, parameter_names=names, scaling=scaling)
        gather = WeightGather(fmt, Workers(N, rank, N), scaled=True)
        shards = Shards(sharding, numels, apart=True)

        def place(owner: int, piece: Any) -> torch.Tensor:
            begin = piece.layer * part + piece.start - owner * part
            return weights_NxS[owner, begin : begin + piece.numel]

        def step() -> None:
            stacks = [g.unsqueeze(0) for g in gradients_NxS.split(part, dim=1)]
            out = list(mine_S.split(part))
            sync.reduce_layers(range(layers), stacks, step=0, epoch=0, out=out, shards=shards)
            mine = list(master_S.split(part))
            gather.run(Weights(names, mine, numels, sharding, place))

        return step

    return {"fp32": fp32, "bf16": bf16} | {label: make_exchange(fmt) for label, fmt in FORMATS.items()}


def make_steps(n_values: int) -> dict[str, Step]:
    """Return, for each method, a function that performs an FSDP2 training step."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from cpdrun.comm import fsdp_comm

    x = torch.randn(16, WIDTH)
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)

    def make_step(policy: MixedPrecisionPolicy, fmt: str | None = None) -> Step:
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(max(1, n_values // WIDTH**2))]
        groups = [
            nn.Sequential(*layers[i : i + LAYERS_PER_GROUP]) for i in range(0, len(layers), LAYERS_PER_GROUP)
        ]
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
    return {"fp32": make_step(plain), "bf16": make_step(half)} | {
        label: make_step(plain, fmt) for label, fmt in FORMATS.items()
    }


def run_rank(options: argparse.Namespace) -> dict[str, Any]:
    found = {}
    makers = {"reduce-scatter + all-gather": make_exchanges, "FSDP2 step": make_steps}
    for title, make in list(makers.items())[: 1 if options.exchange_only else 2]:
        found[title] = time_ranks(make(options.values), options.repeats, warm_ups=WARM_UPS, count=sent_bytes)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    add_link_arguments(parser, ranks=[2, 4], rates=["1gbit"])
    add_exchange_arguments(parser)
    options = parse_arguments(parser, run_rank)
    with Report(options.output) as report:
        run_on_links(report, __file__, options, ["fp32", "fp32, direct", "bf16"], BITS)


if __name__ == "__main__":
    main()
