"""Compare the cost model's predictions with the measured seconds of a training step over a slow link.

    sudo python scripts/benchmarks/cost_model.py                           # 2 ranks, 1 Gbit/s and 100 Mbit/s
    sudo python scripts/benchmarks/cost_model.py --out results/reference/costmodel

Ranks run in network namespaces (slow_links.py). A round calibrates compute, codec and network, but not the exchange
itself (`cpdrun.costmodel.measure`). Then it performs training steps with each method in turns. On a shared machine,
disturbances therefore affect the calibration and the steps equally. Each calibrated parameter is the median over the
rounds, and the measured time of a step is the median of all steps. Nothing is fitted to the steps. The script takes
about ten minutes. The results are in results/reference/costmodel.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import make_table, time_ranks
from slow_links import add_link_arguments, parse_arguments, run_ranks

from cpdrun.costmodel import Calibration, Setup, StepCost, step_cost
from cpdrun.record import write_json, write_text


@dataclass(frozen=True)
class Method:
    """A way to perform a training step.

    Attributes:
        format: The number format.
        aps: Whether gradients are scaled by APS.
        order: The reduction order of cpdrun.comm.
        algorithm: The corresponding algorithm of the cost model.
        ddp: Whether to time a script with DistributedDataParallel, which sends buckets during the backward pass,
            instead of cpdrun's training loop.
    """

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
WARM_UPS = 2  # DDP rebuilds its buckets after the first step.
HEAD = """# The cost model against the clock

`sudo python scripts/benchmarks/cost_model.py`: calibrated and measured in turns on one machine, with each rank in a
network namespace behind a token bucket. Nothing is fitted to the steps. The ranks run ahead of the machine's other
programs. When two cores had to be shared equally with six more, errors reached 36%, because a calibration and the
steps after it are then disturbed differently."""
HEADS = "method", "compute ms", "APS ms", "exchange ms", "predicted ms", "measured ms", "quartiles", "error"


def run_config(width: int) -> dict[str, Any]:
    """Return the config of a model with many parameters and little computation, so that the exchange matters."""
    from cpdrun.sweep import plan

    overrides = ["name=bench_costmodel", "format=fp32", "device=cpu", f"model.width={width}", "batch_size=1"]
    return plan(overrides).runs[0].config


def run_rank(options: argparse.Namespace) -> dict[str, Any]:
    import torch.distributed as dist

    from cpdrun.costmodel.measure import measure

    config = run_config(options.width) | {"world_size": dist.get_world_size()}
    steps = dict(training_steps(config))
    found: dict[str, Any] = {"calibrations": [], "steps": {label: [] for label in steps}}
    time_ranks(steps, WARM_UPS)
    for _ in range(options.rounds):
        found["calibrations"].append(measure(config, FORMATS, repeats=3))
        for label, turns in time_ranks(steps, options.repeats).items():
            found["steps"][label] += [seconds for seconds, _ in turns]
    return found


def training_steps(config: dict[str, Any]) -> Iterator[tuple[str, Callable[[], None]]]:
    for label, method in METHODS.items():
        yield label, (ddp_step if method.ddp else loop_step)(config, method)


def loop_step(config: dict[str, Any], method: Method) -> Callable[[], None]:
    """Return a function that performs a step like cpdrun.train.loop: gradients, their sum over the ranks, optimizer."""
    import torch
    import torch.distributed as dist

    from cpdrun.comm.workers import Workers
    from cpdrun.train.build import build
    from cpdrun.train.learners.emulated_workers import SharedModel
    from cpdrun.train.learners.gradients import ExactGradients, Objective

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
    """Return a function that performs a step like a user's script, with cpdrun's hook or with DDP's own all_reduce."""
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


def measure_link(rate: str, ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    arguments = [f"--{key}={getattr(options, key)}" for key in ("width", "rounds", "repeats")]
    return run_ranks(__file__, ranks, rate, arguments)


def median_of(values: list[Any]) -> Any:
    """Return the median of each float in equal structures. All other values are taken from the first structure."""
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
    """Return the comparison in Markdown, and the relative error of each method."""
    calibration = Calibration.from_json(median_of(found["calibrations"]))
    net, work = calibration.network, calibration.workload
    head = (
        f"## {rate}, {ranks} ranks\n\n"
        f"{work.values:,} parameters. Calibrated: {net.bandwidth_bytes_per_s * 8e-6:.1f} Mbit/s, latency "
        f"{net.latency_s * 1e6:.0f} us, {net.message_s * 1e6:.0f} us a message, burst "
        f"{net.burst_bytes / 1024:.0f} KiB; compute {work.compute_s * 1e3:.0f} ms.\n\n"
    )
    errors, rows = {}, []
    for label, seconds in found["steps"].items():
        cost, measured = predict(calibration, label, ranks), statistics.median(seconds)
        low, _, high = statistics.quantiles(seconds, n=4)
        errors[label] = cost.total_s / measured - 1
        numbers = (cost.compute_s, cost.agreement_s, cost.exchange_s, cost.total_s, measured)
        cells = [f"{1e3 * s:.0f}" for s in numbers]
        rows.append((label, *cells, f"{1e3 * low:.0f} - {1e3 * high:.0f}", f"{errors[label]:+.1%}"))
    return head + make_table(HEADS, rows), errors


def draw_speedup(calibration: Calibration, path: Path) -> None:
    """Draw the forecast for this model and processor, over named networks and the measured link."""
    import matplotlib

    from cpdrun.report import style
    from cpdrun.report.plots.speedup_vs_workers import picture

    with matplotlib.rc_context(style.RC):
        picture(calibration, [("e2m1", True), ("e4m3", True)]).savefig(path, dpi=style.PNG_DPI)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_link_arguments(parser, ranks=[2], rates=["1gbit", "100mbit"])
    parser.add_argument(
        "--width", type=int, default=320, help="width of the conv net, with 90 width^2 parameters"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="calibrations, each followed by steps (default: 3)"
    )
    parser.add_argument(
        "--repeats", type=int, default=4, help="number of steps of each method in a round (default: 4)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for validation.md, the measured times, and a picture"
    )
    options = parse_arguments(parser, run_rank)
    texts, loop_errors, ddp_errors = [], [], []
    for ranks in options.ranks:
        for rate in options.rate:
            found = measure_link(rate, ranks, options)
            text, errors = table(rate, found, ranks)
            print(text, flush=True)
            texts.append(text)
            for label, error in errors.items():
                (ddp_errors if METHODS[label].ddp else loop_errors).append(abs(error))
            if options.out:
                options.out.mkdir(parents=True, exist_ok=True)
                write_json(options.out / f"measured-{rate}.json", found)
                if len(texts) == 1:
                    calibration = Calibration.from_json(median_of(found["calibrations"]))
                    draw_speedup(calibration, options.out / "speedup_vs_workers.png")
    texts.append(
        f"Largest error of a step of the training loop: {max(loop_errors):.1%} (allowed: {ALLOWED_ERROR:.0%}); of "
        f"a DDP script, whose copies to and from buckets are not in the model: {max(ddp_errors):.1%}."
    )
    print(texts[-1])
    if options.out:
        write_text(options.out / "validation.md", "\n\n".join([HEAD, *texts]) + "\n")


if __name__ == "__main__":
    main()
