"""Step time of a script around which cpdrun is, against the same script alone, both taking turns in one process.

    python scripts/bench_attach.py [--steps 300] [--threads 1] [--ranks 2]

    alone      forward, backward, optimizer step of an ordinary PyTorch script
    fp32       the same held to a run of format=fp32, a row of the record every 10 steps
    e3m0, APS  the same held to that format

in one process that is one worker, in one that plays 4 (the script accumulates 4 micro-batches a step), and in `ranks`
processes under DistributedDataParallel. A turn is 10 steps; the script's own steps come before and after those that are
held, so that a slow moment hits both, and a step before each turn is not timed: it finds the other model in the caches,
which made a script 1 to 4 % slower than itself. Printed are the medians of turns and the median of each turn's ratio.
Exit code 1 where fp32 costs more than 1 % and more than 20 us a step, a tenth of what a row costs.
"""

import argparse
import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.attach.hold import Hold
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
    turn(1)
    start = time.perf_counter()
    turn(TURN)
    return (time.perf_counter() - start) / TURN


def measure(
    make: Callable[[], nn.Module], workers: int, typed: tuple[str, ...], steps: int, folder: str
) -> tuple[float, float, float]:
    """Seconds of a step alone and held, and the ratio: medians of turns."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    alone = steps_of(make, workers, None)
    hold = Hold(config(ranks, workers, *typed))
    hold.script.say = lambda line: None
    hold.install()
    held = steps_of(make, workers, Recorder(Path(folder), rank=rank))
    hold.uninstall()
    alone_s, held_s = [], []
    for i in range(steps // TURN + WARM_UPS):
        before = timed(alone)
        hold.install()
        seconds = timed(held)
        hold.uninstall()
        if i >= WARM_UPS:
            alone_s.append((before + timed(alone)) / 2)
            held_s.append(seconds)
    hold.check()
    ratios = [h / a for h, a in zip(held_s, alone_s, strict=True)]
    return statistics.median(alone_s), statistics.median(held_s), statistics.median(ratios)


def rows(workers: int, steps: int, threads: int) -> list[tuple[str, str, float, float, float]]:
    torch.set_num_threads(threads)
    found = []
    for name, make in MODELS.items():
        for label, typed in (
            ("fp32", ("format=fp32", "aps=false")),
            ("e3m0, APS", ("format=e3m0", "aps=true")),
        ):
            with tempfile.TemporaryDirectory() as folder:
                found.append((name, label, *measure(make, workers, typed, steps, folder)))
    return found


def in_rank(rank: int, ranks: int, store: str, results: Any, steps: int, threads: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    found = rows(1, steps, threads)
    dist.barrier()
    if rank == 0:
        results.put(found)
    dist.destroy_process_group()


def in_ranks(ranks: int, steps: int, threads: int) -> list[tuple[str, str, float, float, float]]:
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
    print("| script | model | held to | alone ms | held ms | ratio |\n|---|---|---|---|---|---|")
    for script, measured in (
        ("one worker", lambda: rows(1, given.steps, given.threads)),
        ("one process plays 4", lambda: rows(4, given.steps, given.threads)),
        (f"DDP, {given.ranks} processes", lambda: in_ranks(given.ranks, given.steps, given.threads)),
    ):
        for name, label, alone_s, held_s, ratio in measured():
            print(
                f"| {script} | {name} | {label} | {1e3 * alone_s:.3f} | {1e3 * held_s:.3f} | {ratio:.3f} |",
                flush=True,
            )
            too_slow |= label == "fp32" and ratio > LIMIT and held_s - alone_s > FIXED_S
    return int(too_slow)


if __name__ == "__main__":
    sys.exit(main())
