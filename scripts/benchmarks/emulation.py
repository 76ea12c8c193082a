"""Time the emulation of many workers, compared with one plain fp32 step on the same samples.

    python scripts/benchmarks/emulation.py [--workers 256] [--batch 5] [--threads 2]

The plain step processes one batch of N x B digits, with a forward pass, a backward pass, and a step of SGD. The
emulated steps compute N gradients, round each gradient to the format, add the gradients with every partial sum rounded,
and apply the sum. With emulation=exact, the gradients are computed one worker after the other. With
emulation=batched, they are computed by vmap over grad. The steps are timed in turns. Times are medians. The script
takes about a minute.
"""

import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import Report, describe_machine, make_parser, ratio_table, time_turns

from cpdrun.comm.workers import Workers
from cpdrun.sweep import plan
from cpdrun.train.build import build
from cpdrun.train.learners.emulated_workers import SharedModel
from cpdrun.train.learners.gradients import EMULATIONS, Objective
from cpdrun.train.ranks.torch_settings import keep_freed_memory

CPU = torch.device("cpu")


def plain_step(workers: int, batch: int) -> Callable[[], None]:
    """Return a function that performs an fp32 step on the samples of all workers in one batch."""
    parts = build(run_config(workers, batch, "fp32", False, "exact"), CPU)
    x, y = parts.data.train.fetch_batch(torch.arange(workers * batch))

    def step() -> None:
        parts.optimizer.zero_grad()
        F.cross_entropy(parts.model(x), y).backward()
        parts.optimizer.step()

    return step


def emulated_step(workers: int, batch: int, emulation: str, fmt: str, aps: bool) -> Callable[[], None]:
    """Return a function that performs a step which rounds and adds the gradients of all workers."""
    config = run_config(workers, batch, fmt, aps, emulation)
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


def run_config(workers: int, batch: int, fmt: str, aps: bool, emulation: str) -> dict:
    typed = [f"world_size={workers}", f"batch_size={batch}", f"format={fmt}", f"aps={str(aps).lower()}"]
    return plan([*typed, f"emulation={emulation}", "device=cpu"]).runs[0].config


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--batch", type=int, default=5, help="samples per worker (default: 5)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--repeats", type=int, default=15, help="how many times each step is timed (default: 15)"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    sizes = options.workers, options.batch
    steps = {
        "plain fp32, one batch": plain_step(*sizes),
        "batched, fp32": emulated_step(*sizes, "batched", "fp32", False),
        "batched, e4m3, APS": emulated_step(*sizes, "batched", "e4m3", True),
        "exact, e4m3, APS": emulated_step(*sizes, "exact", "e4m3", True),
    }
    found = time_turns(steps, options.repeats, warm_ups=2)  # The first two steps fill caches and allocators.
    seconds = {name: statistics.median(times) for name, times in found.items()}
    with Report(options.output) as report:
        report.add(describe_machine(threads=options.threads))
        report.add(ratio_table(f"convnet, {options.workers} workers x {options.batch} digits", seconds))


if __name__ == "__main__":
    main()
