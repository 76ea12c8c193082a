"""Step time of a script around which cpdrun is, against the same script alone, both taking turns in one process.

    python scripts/benchmarks/script_overhead.py [--steps 300] [--threads 1] [--ranks 2]

    alone      forward, backward, optimizer step of an ordinary PyTorch script
    itself     the same once more: how far apart two equal scripts are on this machine, now
    fp32       the same held to a run of format=fp32, a row of the record every 10 steps
    e3m0, APS  the same held to that format

in one process that is one worker, in one that plays 4 (the script accumulates 4 micro-batches a step), and in `ranks`
processes under DistributedDataParallel. Turns of 10 steps alternate, so that a slow moment hits both, and each comes
after the other; two steps before each are not timed: they find the other model in the caches, which made a script 1 to
4 % slower than itself, and the first is one that cpdrun watches. A turn's ratio is to the mean of those before and
after it. Printed are medians, that of the ratios with its interval of 95 % by order statistics. Exit code 1 where the
whole interval of fp32 lies above 1.01, and the medians more than 20 us a step apart, which is more than a row takes.
"""

import argparse
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
HELD_TO = {
    "itself": None,
    "fp32": ("format=fp32", "aps=false"),
    "e3m0, APS": ("format=e3m0", "aps=true"),
}


class Measured(NamedTuple):
    """Seconds of a step alone and held, the ratio, and what that lies in."""

    alone_s: float
    held_s: float
    ratio: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{1e3 * self.alone_s:.3f} | {1e3 * self.held_s:.3f} | {self.ratio:.3f} | {low:.3f} to {high:.3f}"
        )


def config(ranks: int, workers: int, *typed: str) -> dict[str, Any]:
    many = (f"world_size={ranks * workers}", f"nproc={ranks}")
    (planned,) = plan(["data=digits", "name=bench", *many, *typed, "results_dir=nowhere"]).runs
    return planned.config


def steps_of(
    make: Callable[[], nn.Module], micro_batches: int, recorder: Recorder | None
) -> Callable[[int], None]:
    """So many steps of a script, with a row after the TURN-th."""
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


def timed(turn: Callable[[int], None]) -> float:
    turn(2)
    start = time.perf_counter()
    turn(TURN)
    return (time.perf_counter() - start) / TURN


def measure(
    make: Callable[[], nn.Module], workers: int, typed: tuple[str, ...] | None, steps: int, folder: str
) -> Measured:
    """Medians of turns."""
    alone = steps_of(make, workers, None)
    if typed is None:
        return compared(alone, steps_of(make, workers, None), nullcontext, steps)
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    interceptor = Interceptor(config(ranks, workers, *typed))
    interceptor.script.print = lambda line: None

    @contextmanager
    def held() -> Iterator[None]:
        interceptor.install()
        yield
        interceptor.uninstall()

    with held():
        other = steps_of(make, workers, Recorder(Path(folder), rank=rank))
    measured = compared(alone, other, held, steps)
    interceptor.check()
    return measured


def compared(
    alone: Callable[[int], None], other: Callable[[int], None], held: Callable[[], Any], steps: int
) -> Measured:
    alone_s, held_s = [timed(alone)], []
    for _ in range(steps // TURN + WARM_UPS):
        with held():
            held_s.append(timed(other))
        alone_s.append(timed(alone))
    alone_s = [(before + after) / 2 for before, after in itertools.pairwise(alone_s)][WARM_UPS:]
    held_s = held_s[WARM_UPS:]
    ratios = sorted(h / a for h, a in zip(held_s, alone_s, strict=True))
    outside = max(math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))), 0)
    interval = ratios[outside], ratios[-1 - outside]
    return Measured(
        statistics.median(alone_s), statistics.median(held_s), statistics.median(ratios), interval
    )


def rows(workers: int, steps: int, threads: int) -> list[tuple[str, str, Measured]]:
    torch.set_num_threads(threads)
    found = []
    for name, make in MODELS.items():
        for label, typed in HELD_TO.items():
            with tempfile.TemporaryDirectory() as folder:
                found.append((name, label, measure(make, workers, typed, steps, folder)))
    return found


def in_rank(rank: int, ranks: int, store: str, results: Any, steps: int, threads: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    found = rows(1, steps, threads)
    dist.barrier()
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def in_ranks(ranks: int, steps: int, threads: int) -> list[tuple[str, str, Measured]]:
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.Queue()
        arguments = (ranks, f"{folder}/store", results, steps, threads)
        processes = [context.Process(target=in_rank, args=(r, *arguments)) for r in range(ranks)]
        for process in processes:
            process.start()
        found = results.get()
        for process in processes:
            process.join()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    too_slow = False
    print("| script | model | held to | alone ms | held ms | ratio | 95 % |\n|---|---|---|---|---|---|---|")
    for script, measured in (
        ("one worker", lambda: rows(1, given.steps, given.threads)),
        ("one process plays 4", lambda: rows(4, given.steps, given.threads)),
        (f"DDP, {given.ranks} processes", lambda: in_ranks(given.ranks, given.steps, given.threads)),
    ):
        for name, label, of in measured():
            print(f"| {script} | {name} | {label} | {of} |", flush=True)
            too_slow |= label == "fp32" and of.interval[0] > LIMIT and of.held_s - of.alone_s > FIXED_S
    return int(too_slow)


if __name__ == "__main__":
    sys.exit(main())
