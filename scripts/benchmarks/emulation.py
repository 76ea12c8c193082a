"""What emulating many workers costs: one step of N workers against one plain fp32 step on the same samples.

    python scripts/benchmarks/emulation.py [--workers 256] [--batch 5] [--threads 2]

The plain step is one batch of N x B digits: forward, backward, SGD. The emulated steps compute N gradients
(exact: one worker after the other; batched: vmap over grad), round each to the format, add them with every
partial sum rounded, and apply the sum. All are timed in turn in one process; medians, and ratios to plain.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from cpdrun.comm.workers import Workers
from cpdrun.sweep import plan
from cpdrun.train.build import build
from cpdrun.train.learners.gradients import EMULATIONS, Objective
from cpdrun.train.learners.played import SharedModel

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--batch", type=int, default=5, help="samples a worker")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    steps = {"plain fp32, one batch": plain_step(arguments.workers, arguments.batch)}
    for fmt, aps in (("fp32", False), ("e4m3", True)):
        name = f"{fmt}{', APS' if aps else ''}"
        steps[f"batched, {name}"] = emulated_step(arguments.workers, arguments.batch, "batched", fmt, aps)
    steps["exact, e4m3, APS"] = emulated_step(arguments.workers, arguments.batch, "exact", "e4m3", True)

    seconds = interleaved(steps, arguments.repeats)
    plain = seconds["plain fp32, one batch"]
    print(f"{arguments.workers} workers x {arguments.batch} digits, convnet, {arguments.threads} threads")
    for name, value in seconds.items():
        print(f"{name:24s} {1000 * value:8.1f} ms  {value / plain:6.2f} x")


def interleaved(steps: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median seconds of each step, the steps taken in turn so that a slow moment hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 2):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if repeat >= 2:  # the first two warm caches and allocators
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def plain_step(workers: int, batch: int) -> Callable[[], None]:
    parts = build(_config(workers, batch, "fp32", False, "exact"), CPU)
    x, y = parts.data.train.fetch_batch(torch.arange(workers * batch))

    def step() -> None:
        parts.optimizer.zero_grad()
        F.cross_entropy(parts.model(x), y).backward()
        parts.optimizer.step()

    return step


def emulated_step(workers: int, batch: int, emulation: str, fmt: str, aps: bool) -> Callable[[], None]:
    config = _config(workers, batch, fmt, aps, emulation)
    parts = build(config, CPU)
    gradients_of = EMULATIONS[emulation](
        Objective(SharedModel(parts.model, Workers(workers)), parts.batches, parts.task)
    )
    index_NxB = torch.arange(workers * batch).view(workers, batch)
    parameters = list(parts.model.parameters())
    count = iter(range(10**9))

    def step() -> None:
        number = next(count)
        _, stacks = gradients_of(index_NxB, number)
        for parameter, gradient in zip(
            parameters, parts.sync.reduce_stacked(stacks, step=number, epoch=0), strict=True
        ):
            parameter.grad = gradient
        parts.optimizer.step()

    return step


def _config(workers: int, batch: int, fmt: str, aps: bool, emulation: str) -> dict:
    typed = [f"world_size={workers}", f"batch_size={batch}", f"format={fmt}", f"aps={str(aps).lower()}"]
    return plan([*typed, f"emulation={emulation}", "device=cpu"]).runs[0].config


if __name__ == "__main__":
    main()
