"""Measure how much slower a user's script is when cpdrun is attached to it.

    python scripts/benchmarks/script_overhead.py [--steps 300] [--threads 1] [--ranks 2]

    alone      forward, backward and optimizer step of an ordinary PyTorch script
    itself     the same script again, which shows how much the times of equal scripts differ on this machine
    fp32       the script attached to a run of format=fp32, with a row of the record every 10 steps
    e3m0, APS  the script attached to a run of that format

The script runs in one process as one worker, in one process that emulates 4 workers (with 4 micro-batches per step),
and in `--ranks` processes with DistributedDataParallel. Turns of 10 steps alternate, so that a slow moment affects both
sides. The two steps before each turn are not timed, because the caches then contain the other model, and because cpdrun
inspects the first step. The ratio of a turn is relative to the mean of the turns before and after it. The table
contains medians, and the 95% interval of the ratio from order statistics. The script takes about five minutes.

The exit status is 1 if the whole interval of fp32 is above 1.01 and the medians differ by more than 20 us per step,
which is more than the time to write a row of the record.
"""

import itertools
import math
import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from harness import Report, describe_machine, make_parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.attach.recorder import Recorder
from cpdrun.sweep import plan

LIMIT, FIXED_S = 1.01, 2e-5
TURN, WARM_UPS = 10, 4
MODELS = {
    "mlp, 0.5M weights": lambda: nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256)
    ),
    "mlp, 6M weights": lambda: nn.Sequential(
        nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 256)
    ),
}
ATTACHED_TO = {
    "itself": None,
    "fp32": ("format=fp32", "aps=false"),
    "e3m0, APS": ("format=e3m0", "aps=true"),
}


class Overhead(NamedTuple):
    """The seconds of a step without and with cpdrun attached, their ratio, and the interval of the ratio."""

    alone_s: float
    attached_s: float
    ratio: float
    interval: tuple[float, float]

    def cells(self) -> tuple[str, ...]:
        low, high = self.interval
        ms = (f"{1e3 * s:.3f}" for s in (self.alone_s, self.attached_s))
        return *ms, f"{self.ratio:.3f}", f"{low:.3f} to {high:.3f}"


def config(ranks: int, workers: int, *overrides: str) -> dict[str, Any]:
    many = (f"world_size={ranks * workers}", f"nproc={ranks}")
    (planned,) = plan(["data=digits", "name=bench", *many, *overrides, "results_dir=nowhere"]).runs
    return planned.config


def make_turn(
    make: Callable[[], nn.Module], micro_batches: int, recorder: Recorder | None
) -> Callable[[int], None]:
    """Return a function that performs a given number of steps and records a row after every TURN steps."""
    torch.manual_seed(0)
    model: nn.Module = make()
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(128, 256), torch.randint(0, 256, (128,))
    parts = list(zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True))

    def turn(steps: int) -> None:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            for inputs, labels in parts:
                loss = F.cross_entropy(model(inputs), labels) / micro_batches
                loss.backward()
            optimizer.step()
            if recorder and step % TURN == 0:
                recorder.log({"step": step, "loss": loss})

    return turn


def time_turn(turn: Callable[[int], None]) -> float:
    turn(2)
    start = time.perf_counter()
    turn(TURN)
    return (time.perf_counter() - start) / TURN


def measure(
    make: Callable[[], nn.Module], workers: int, overrides: tuple[str, ...] | None, steps: int, folder: str
) -> Overhead:
    """Compare the script outside of a run with the script attached to a run.

    If `overrides` is None, the script outside of a run is compared with itself.
    """
    alone = make_turn(make, workers, None)
    if overrides is None:
        return compare(alone, make_turn(make, workers, None), nullcontext, steps)
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    interceptor = Interceptor(config(ranks, workers, *overrides))
    interceptor.script.print = lambda line: None

    @contextmanager
    def attached() -> Iterator[None]:
        interceptor.install()
        yield
        interceptor.uninstall()

    with attached():
        other = make_turn(make, workers, Recorder(Path(folder), rank=rank))
    measured = compare(alone, other, attached, steps)
    interceptor.check()
    return measured


def compare(
    alone: Callable[[int], None], other: Callable[[int], None], attached: Callable[[], Any], steps: int
) -> Overhead:
    alone_s, attached_s = [time_turn(alone)], []
    for _ in range(steps // TURN + WARM_UPS):
        with attached():
            attached_s.append(time_turn(other))
        alone_s.append(time_turn(alone))
    alone_s = [(before + after) / 2 for before, after in itertools.pairwise(alone_s)][WARM_UPS:]
    attached_s = attached_s[WARM_UPS:]
    ratios = sorted(h / a for h, a in zip(attached_s, alone_s, strict=True))
    outside = max(math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))), 0)
    interval = ratios[outside], ratios[-1 - outside]
    return Overhead(
        statistics.median(alone_s), statistics.median(attached_s), statistics.median(ratios), interval
    )


def measure_all(workers: int, steps: int, threads: int) -> list[tuple[str, str, Overhead]]:
    torch.set_num_threads(threads)
    found = []
    for name, make in MODELS.items():
        for label, overrides in ATTACHED_TO.items():
            with tempfile.TemporaryDirectory() as folder:
                found.append((name, label, measure(make, workers, overrides, steps, folder)))
    return found


def run_rank(rank: int, ranks: int, store: str, results: Any, steps: int, threads: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    found = measure_all(1, steps, threads)
    dist.barrier()
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def measure_in_ranks(ranks: int, steps: int, threads: int) -> list[tuple[str, str, Overhead]]:
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        arguments = (ranks, f"{folder}/store", results, steps, threads)
        processes = [context.Process(target=run_rank, args=(r, *arguments)) for r in range(ranks)]
        for process in processes:
            process.start()
        found = results.get()
        for process in processes:
            process.join()
    return found


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=300, help="timed steps of each side (default: 300)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2, help="number of processes of DDP (default: 2)")
    options = parser.parse_args()
    steps, threads = options.steps, options.threads
    scripts = {
        "one worker": lambda: measure_all(1, steps, threads),
        "one process emulates 4": lambda: measure_all(4, steps, threads),
        f"DDP, {options.ranks} processes": lambda: measure_in_ranks(options.ranks, steps, threads),
    }
    is_slow = False

    def measure_rows() -> Iterator[tuple[str, ...]]:
        nonlocal is_slow
        for script, measure_script in scripts.items():
            for model, label, found in measure_script():
                yield script, model, label, *found.cells()
                is_slow |= (
                    label == "fp32"
                    and found.interval[0] > LIMIT
                    and found.attached_s - found.alone_s > FIXED_S
                )

    with Report(options.output) as report:
        report.add(describe_machine(threads=threads))
        heads = ("script", "model", "attached to", "alone ms", "attached ms", "ratio", "95%")
        report.add_table(heads, measure_rows(), text_columns=3)
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
