"""Runs a user's script as N ranks, in the environment that torchrun gives, in a second instead of ten.

The libraries are imported once, in the server that tests/conftest.py describes; ranks are forked from it.
"""

import multiprocessing as mp
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import yaml

_context = mp.get_context("forkserver")


def plainly(script: str) -> None:
    runpy.run_path(script, run_name="__main__")


def attached(script: str) -> None:
    """Inside the run that CPDRUN_RUN_DIR names, of this script."""
    from cpdrun.attach import runner

    run = Path(os.environ["CPDRUN_RUN_DIR"])
    code = runner.run(run, yaml.safe_load((run / "config.yaml").read_text()), sys.argv[1:])
    if code:
        raise SystemExit(code)


def run_script(
    ranks: int,
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    how: Callable[[str], None] = plainly,
    ends_with: int = 0,
    **environment: str,
) -> str:
    """`how(script)` in each rank, with the script's arguments in sys.argv, from `folder`; what rank 0 printed.

    One rank is an ordinary process, several are as under torchrun. AssertionError, with its log, where a rank fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank, place in enumerate(_places(ranks)):
        log = folder / f"rank{rank}.log"
        about = (str(script), list(arguments), folder, log, {**place, **environment}, how)
        processes.append(_context.Process(target=_rank, args=about))
    for process in processes:
        process.start()
    try:
        for rank, process in enumerate(processes):
            process.join(120)
            assert process.exitcode == ends_with, (folder / f"rank{rank}.log").read_text()
    finally:
        for process in processes:
            process.kill()
            process.join()
    return (folder / "rank0.log").read_text()


def _places(ranks: int) -> list[dict[str, str]]:
    if ranks == 1:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    everywhere = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }
    return [everywhere | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _rank(
    script: str, arguments: list[str], folder: Path, log: Path, environment: dict, how: Callable
) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    # Lightning sets as many threads as there are processors where nobody said
    os.environ.update(environment, GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    code = 0
    try:
        how(script)
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        print(asked, flush=True)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
