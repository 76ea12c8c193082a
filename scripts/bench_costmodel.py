#!/usr/bin/env python
"""The cost model against the clock: predicted and measured seconds of a training step over a slow link.

    sudo python scripts/bench_costmodel.py                           # 2 ranks, 1 Gbit/s and 100 Mbit/s
    sudo python scripts/bench_costmodel.py --out results/reference/costmodel

Ranks run in network namespaces as in bench_wire.py. In turns, so that both see the same disturbances of a
shared machine, a round calibrates (`cpdrun.train.calibrate`: compute, codec, network, never the exchange
itself) and takes steps of the training loop with each method. A parameter is its median over the rounds, a
measured step the median of all; nothing is fitted to the steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_wire import INTERFACE, lay_link

from cpdrun.record import write_json, write_text
from cpdrun.report.costmodel import Calibration, Setup, StepCost, step_cost

# label: format, aps, order of cpdrun.comm, algorithm of the model
METHODS = {
    "fp32 all_reduce": ("fp32", False, "native", "ring"),
    "fp32": ("fp32", False, "rank", "direct"),
    "8 bits, APS": ("e4m3", True, "rank", "direct"),
    "4 bits, APS": ("e2m1", True, "rank", "direct"),
}
FORMATS = sorted({fmt for fmt, *_ in METHODS.values()})
ALLOWED_ERROR = 0.15


def run_config(width: int) -> dict[str, Any]:
    """Large for its compute: what is tried is the exchange."""
    from cpdrun.sweep import plan

    overrides = ["name=bench_costmodel", "format=fp32", "device=cpu", f"model.width={width}", "batch_size=1"]
    return plan(overrides).runs[0].config


# ---- one rank


def be_preferred() -> None:
    """Ahead of other programs of this machine, which would disturb the clock; the ranks mostly wait."""
    autogroup = Path("/proc/self/autogroup")  # where there is one, nice counts inside a session only
    if autogroup.exists():
        autogroup.write_text("-19")
    os.nice(-19)


def be_rank(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from cpdrun.train.calibrate import measure

    torch.set_num_threads(1)
    be_preferred()
    dist.init_process_group("gloo")
    config = run_config(options.width) | {"world_size": dist.get_world_size()}
    steps = dict(training_steps(config))
    found: dict[str, Any] = {"calibrations": [], "steps": {label: [] for label in steps}}
    for _ in range(options.rounds):
        found["calibrations"].append(measure(config, FORMATS, repeats=3))
        for label, seconds in time_steps(steps, options.repeats).items():
            found["steps"][label] += seconds
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def training_steps(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """A step of the loop with each method: gradients, sum over the ranks, optimizer."""
    import torch
    import torch.distributed as dist

    from cpdrun.train.build import build, build_sync
    from cpdrun.train.gradients import ExactGradients, Task
    from cpdrun.train.workers import Workers

    ranks = dist.get_world_size()
    workers = Workers(ranks, dist.get_rank(), ranks)
    parts = build(config, torch.device("cpu"))
    parts.model.train()
    gradients_of = ExactGradients(Task(parts.model, parts.data, workers, 0, torch.device("cpu")))
    parameters = list(parts.model.parameters())
    index_NxB = torch.arange(ranks * config["batch_size"]).view(ranks, -1)
    for label, (fmt, aps, order, _) in METHODS.items():
        chosen = config | {"format": fmt, "aps": aps, "sync": config["sync"] | {"order": order}}
        sync = build_sync(chosen, parts.model)

        def step(sync: Any = sync) -> None:
            _, gradients_WxP = gradients_of(index_NxB, 0)
            mean = sync.reduce_stacked(gradients_WxP, step=0, epoch=0)
            for parameter, gradient in zip(parameters, mean, strict=True):
                parameter.grad = gradient.div_(1.0)
            parts.precision.step(parts.optimizer, parameters)

        yield label, step


def time_steps(steps: Mapping[str, Any], repeats: int) -> dict[str, list[float]]:
    """Seconds of each step, of the slowest rank, in turns; the first of each is a warm-up."""
    import time

    import torch
    import torch.distributed as dist

    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for repeat in range(1 + repeats):
        for label, step in steps.items():
            dist.barrier()
            started = time.perf_counter()
            step()
            spent = torch.tensor(time.perf_counter() - started)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            if repeat:
                seconds[label].append(spent.item())
    return seconds


# ---- all ranks


def measure_link(rate: str, options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        processes = []
        for rank, machine in enumerate(lay_link(stack, options.ranks, rate)):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(options.ranks),
                "MASTER_ADDR": "10.99.0.1",
                "MASTER_PORT": str(28000 + os.getpid() % 1000),
                "GLOO_SOCKET_IFNAME": INTERFACE,
                "OMP_NUM_THREADS": "1",
            }
            arguments = [f"--{key}={getattr(options, key)}" for key in ("width", "rounds", "repeats")]
            process = subprocess.Popen(
                ["ip", "netns", "exec", machine, sys.executable, __file__, "--as-rank", *arguments],
                env=environment,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        output, _ = processes[0].communicate()
        if processes[0].returncode:
            raise SystemExit(f"a rank failed with exit code {processes[0].returncode}")
        return json.loads(output.splitlines()[-1])


def median_of(values: list[Any]) -> Any:
    """Median number by number through equal structures; what is no float is taken from the first."""
    if isinstance(values[0], dict):
        return {key: median_of([value[key] for value in values]) for key in values[0]}
    return statistics.median(values) if isinstance(values[0], float) else values[0]


def predict(calibration: Calibration, label: str, ranks: int) -> StepCost:
    fmt, aps, _, algorithm = METHODS[label]
    return step_cost(
        Setup(
            workers=ranks,
            workload=calibration.workload,
            codec=calibration.codecs[fmt],
            network=calibration.network,
            algorithm=algorithm,
            aps=aps,
        )
    )


def table(rate: str, found: dict[str, Any], ranks: int) -> tuple[str, dict[str, float]]:
    """The comparison in Markdown, and each method's relative error."""
    calibration = Calibration.from_json(median_of(found["calibrations"]))
    net, work = calibration.network, calibration.workload
    lines = [
        f"## {rate}, {ranks} ranks",
        "",
        f"{work.values:,} parameters. Calibrated: {net.bandwidth_bytes_per_s * 8e-6:.1f} Mbit/s, latency "
        f"{net.latency_s * 1e6:.0f} us, {net.message_s * 1e6:.0f} us a message, burst "
        f"{net.burst_bytes / 1024:.0f} KiB; compute {work.compute_s * 1e3:.0f} ms.",
        "",
        "| method | compute ms | APS ms | exchange ms | predicted ms | measured ms | quartiles | error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    errors = {}
    for label, seconds in found["steps"].items():
        cost, measured = predict(calibration, label, ranks), statistics.median(seconds)
        low, _, high = statistics.quantiles(seconds, n=4)
        errors[label] = cost.total_s / measured - 1
        numbers = (cost.compute_s, cost.agreement_s, cost.exchange_s, cost.total_s, measured)
        cells = " | ".join(f"{1e3 * s:.0f}" for s in numbers)
        lines.append(f"| {label} | {cells} | {1e3 * low:.0f} - {1e3 * high:.0f} | {errors[label]:+.1%} |")
    return "\n".join(lines), errors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", nargs="+", default=["1gbit", "100mbit"], help="as tc spells it")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=320, help="of the conv net: 90 width^2 parameters")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3, help="steps of each method a round")
    parser.add_argument("--out", type=Path, help="folder for validation.md and what was measured")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        be_rank(options)
        return
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: run it with sudo")
    texts, worst = [], 0.0
    for rate in options.rate:
        found = measure_link(rate, options)
        text, errors = table(rate, found, options.ranks)
        print(text, flush=True)
        texts.append(text)
        worst = max(worst, *(abs(error) for error in errors.values()))
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            write_json(options.out / f"measured-{rate}.json", found)
    texts.append(f"Largest error: {worst:.1%} (allowed: {ALLOWED_ERROR:.0%}).")
    print(texts[-1])
    if options.out:
        head = "# The cost model against the clock\n\n`sudo python scripts/bench_costmodel.py`: " + (
            "calibrated and measured in turns on one machine,\neach rank a network namespace behind a token "
            "bucket; nothing is fitted to the steps."
        )
        write_text(options.out / "validation.md", "\n\n".join([head, *texts]) + "\n")


if __name__ == "__main__":
    main()
