"""Train a run in N ranks with the environment of torchrun, forked from a process that has imported torch.

This takes a second, while torchrun takes four seconds for itself and four for each rank. torchrun itself is tested in
tests/examples.
"""

import multiprocessing as mp
import os
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from cpdrun.record import RunDir

_context = mp.get_context("forkserver")  # tests/conftest.py chooses what its server imports
TIMEOUT_S, GRACE_S = 240, 20


@dataclass(frozen=True)
class Ended:
    returncode: int  # of the first rank that failed, or 0
    stderr: str


def start(run: RunDir, nproc: int) -> tuple[list[mp.Process], list[Path]]:
    """Start the ranks and return them with the log of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs = [run.path / f"forked{r}.log" for r in range(nproc)]
    ranks = [_context.Process(target=_rank, args=(run.path, r, nproc, port, logs[r])) for r in range(nproc)]
    for rank in ranks:
        rank.start()
    return ranks, logs


def train(run: RunDir, nproc: int) -> Ended:
    """Train the run. When a rank fails, the others are killed some time later."""
    ranks, logs = start(run, nproc)
    until = time.monotonic() + TIMEOUT_S
    try:
        while any(rank.is_alive() for rank in ranks) and time.monotonic() < until:
            if any(rank.exitcode for rank in ranks):
                until = min(until, time.monotonic() + GRACE_S)
            for rank in ranks:
                rank.join(0.05)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return Ended(next((r.exitcode for r in ranks if r.exitcode), 0), "".join(log.read_text() for log in logs))


def _rank(folder: Path, rank: int, nproc: int, port: int, log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ |= {f"{prefix}RANK": str(rank) for prefix in ("", "LOCAL_")}
    os.environ |= {f"{prefix}WORLD_SIZE": str(nproc) for prefix in ("", "LOCAL_")}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    mp.set_start_method("fork", force=True)  # for the loaders, as in any process on Linux
    os.chdir(folder)
    code = 1
    try:
        from cpdrun.train.rank import run_rank

        code = run_rank(str(folder))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
