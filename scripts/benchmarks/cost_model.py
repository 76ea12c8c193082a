"""The cost model against the clock: predicted and measured seconds of a training step over a slow link.

    sudo python scripts/benchmarks/cost_model.py                           # 2 ranks, 1 Gbit/s and 100 Mbit/s
    sudo python scripts/benchmarks/cost_model.py --out results/reference/costmodel

Ranks run in network namespaces (slow_links.py). In turns, so that both see the same disturbances of a
shared machine, a round calibrates (`cpdrun.costmodel.measure`: compute, codec, network, never the exchange
itself) and takes steps of the training loop with each method. A parameter is its median over the rounds, a
measured step the median of all; nothing is fitted to the steps.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slow_links import found_by_ranks

from cpdrun.costmodel import Calibration, Setup, StepCost, step_cost
from cpdrun.record import write_json, write_text


@dataclass(frozen=True)
class Method:
    """A way to take a step: `order` of cpdrun.comm, `algorithm` of the model that it is; ddp: in a script with
    DistributedDataParallel, whose buckets travel while backward runs, and not in the training loop."""

    format: str
    aps: bool = False
    order: str = "rank"
    algorithm: str = "direct"
    ddp: bool = False


METHODS = {
    "fp32 all_reduce": Method("fp32", order="native", algorithm="ring"),
    "fp32": Method("fp32"),
    "8 bits, APS": Method("e4m3", aps=True),
    "4 bits, APS": Method("e2m1", aps=True),
    "DDP, fp32": Method("fp32", order="native", algorithm="ring", ddp=True),
    "DDP, 8 bits, APS": Method("e4m3", aps=True, ddp=True),
    "DDP, 4 bits, APS": Method("e2m1", aps=True, ddp=True),
}
FORMATS = sorted({method.format for method in METHODS.values()})
ALLOWED_ERROR = 0.15
WARM_UPS = 2  # DDP rebuilds its buckets after the first step


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

    from cpdrun.costmodel.measure import measure

    torch.set_num_threads(1)
    be_preferred()
    dist.init_process_group("gloo")
    config = run_config(options.width) | {"world_size": dist.get_world_size()}
    steps = dict(training_steps(config))
    found: dict[str, Any] = {"calibrations": [], "steps": {label: [] for label in steps}}
    time_steps(steps, WARM_UPS)
    for _ in range(options.rounds):
        found["calibrations"].append(measure(config, FORMATS, repeats=3))
        for label, seconds in time_steps(steps, options.repeats).items():
            found["steps"][label] += seconds
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def training_steps(config: dict[str, Any]) -> Iterator[tuple[str, Callable[[], None]]]:
    for label, method in METHODS.items():
        yield label, (ddp_step if method.ddp else loop_step)(config, method)


def loop_step(config: dict[str, Any], method: Method) -> Callable[[], None]:
    """As cpdrun.train.loop: gradients, then their sum over the ranks, then the optimizer."""
    import torch
    import torch.distributed as dist

    from cpdrun.comm.workers import Workers
    from cpdrun.train.build import build
    from cpdrun.train.learners.gradients import ExactGradients, Objective
    from cpdrun.train.learners.played import SharedModel

    ranks = dist.get_world_size()
    workers = Workers(ranks, dist.get_rank(), ranks)
    chosen = {"format": method.format, "aps": method.aps, "sync": config["sync"] | {"order": method.order}}
    parts = build(config | chosen, torch.device("cpu"))
    parts.model.train()
    gradients_of = ExactGradients(Objective(SharedModel(parts.model, workers), parts.batches, parts.task))
    parameters = list(parts.model.parameters())
    index_NxB = torch.arange(ranks * config["batch_size"]).view(ranks, -1)

    def step() -> None:
        _, gradients_WxP = gradients_of(index_NxB, 0)
        mean = parts.sync.reduce_stacked(gradients_WxP, step=0, epoch=0)
        for parameter, gradient in zip(parameters, mean, strict=True):
            parameter.grad = gradient.div_(1.0)
        parts.precision.step(parts.optimizer, parameters)

    return step


def ddp_step(config: dict[str, Any], method: Method) -> Callable[[], None]:
    """As a script of a user's own, with cpdrun's hook unless the method is DDP's all_reduce."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    from cpdrun.comm import ddp_hook
    from cpdrun.data.base import fetch_batch
    from cpdrun.train.build import build

    parts = build(config, torch.device("cpu"))
    model = DistributedDataParallel(parts.model)
    if method.order != "native":
        model.register_comm_hook(*ddp_hook(model, method.format, aps=method.aps))
    first = dist.get_rank() * config["batch_size"]
    x, y = fetch_batch(parts.data.train, torch.arange(first, first + config["batch_size"]))

    def step() -> None:
        parts.optimizer.zero_grad(set_to_none=False)
        cross_entropy(model(x), y).backward()
        parts.optimizer.step()

    return step


def time_steps(steps: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each step, of the slowest rank, in turns."""
    import time

    import torch
    import torch.distributed as dist

    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(repeats):
        for label, step in steps.items():
            dist.barrier()
            started = time.perf_counter()
            step()
            spent = torch.tensor(time.perf_counter() - started)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            seconds[label].append(spent.item())
    return seconds


# ---- all ranks


def measure_link(rate: str, options: argparse.Namespace) -> dict[str, Any]:
    arguments = [f"--{key}={getattr(options, key)}" for key in ("width", "rounds", "repeats")]
    return found_by_ranks(__file__, options.ranks, rate, arguments)


def median_of(values: list[Any]) -> Any:
    """Median number by number through equal structures; what is no float is taken from the first."""
    if isinstance(values[0], dict):
        return {key: median_of([value[key] for value in values]) for key in values[0]}
    return statistics.median(values) if isinstance(values[0], float) else values[0]


def predict(calibration: Calibration, label: str, ranks: int) -> StepCost:
    method = METHODS[label]
    return step_cost(
        Setup(
            workers=ranks,
            workload=calibration.workload,
            codec=calibration.codecs[method.format],
            network=calibration.network,
            algorithm=method.algorithm,
            aps=method.aps,
            overlap=method.ddp,
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


def draw_speedup(calibration: Calibration, path: Path) -> None:
    """The forecast for this model and processor, over named networks and the measured link."""
    import matplotlib

    from cpdrun.report import style
    from cpdrun.report.plots.speedup_vs_workers import picture

    with matplotlib.rc_context(style.RC):
        picture(calibration, [("e2m1", True), ("e4m3", True)]).savefig(path, dpi=style.PNG_DPI)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", nargs="+", default=["1gbit", "100mbit"], help="as tc spells it")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=320, help="of the conv net: 90 width^2 parameters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=4, help="steps of each method a round")
    parser.add_argument("--out", type=Path, help="folder for validation.md, what was measured, and a picture")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        be_rank(options)
        return
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: run it with sudo")
    texts, loop_errors, ddp_errors = [], [], []
    for rate in options.rate:
        found = measure_link(rate, options)
        text, errors = table(rate, found, options.ranks)
        print(text, flush=True)
        texts.append(text)
        for label, error in errors.items():
            (ddp_errors if METHODS[label].ddp else loop_errors).append(abs(error))
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            write_json(options.out / f"measured-{rate}.json", found)
            if rate == options.rate[0]:
                calibration = Calibration.from_json(median_of(found["calibrations"]))
                draw_speedup(calibration, options.out / "speedup_vs_workers.png")
    texts.append(
        f"Largest error of a step of the training loop: {max(loop_errors):.1%} (allowed: {ALLOWED_ERROR:.0%}); of "
        f"a DDP script, whose copies to and from buckets are not in the model: {max(ddp_errors):.1%}."
    )
    print(texts[-1])
    if options.out:
        head = "# The cost model against the clock\n\n`sudo python scripts/benchmarks/cost_model.py`: " + (
            "calibrated and measured in turns on one machine,\neach rank a network namespace behind a token "
            "bucket; nothing is fitted to the steps. The ranks go before\nthe machine's other programs; when two "
            "cores had to be shared equally with six more, errors reached 36 %, for\nthen a calibration and the "
            "steps after it are disturbed differently."
        )
        write_text(options.out / "validation.md", "\n\n".join([head, *texts]) + "\n")


if __name__ == "__main__":
    main()
