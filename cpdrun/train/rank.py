"""The entry point of a rank.

    torchrun --nproc-per-node 2 -m cpdrun.train.rank RUN_DIR

This command reads RUN_DIR/config.yaml, trains, and writes the record to the same folder. Without torchrun, one process
emulates all workers. The launcher calls :func:`run_rank` in a process that is already a rank.
"""

import os
import shutil
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.recipe.coverage import shares_text

from cpdrun.comm import naming_lost_ranks
from cpdrun.comm.workers import Workers
from cpdrun.config.secrets import revealed
from cpdrun.errors import UserError
from cpdrun.record import Attempt, Result, RunDir, read_config
from cpdrun.train.build import build
from cpdrun.train.loop import Preempted, train
from cpdrun.train.preflight.products import emulated_products
from cpdrun.train.ranks import heartbeat
from cpdrun.train.ranks.rendezvous import meet
from cpdrun.train.ranks.torch_settings import backend_for, configure_torch, keep_freed_memory, select_device
from cpdrun.train.state.journal import Journal

EXIT_PREEMPTED = 75  # EX_TEMPFAIL in sysexits.h. The run is not finished, but another attempt may finish it.


def main(argv: list[str] | None = None) -> int:
    """Run one rank for the run directory in the command line. Return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or not (Path(arguments[0]) / "config.yaml").exists():
        print(
            "usage: [torchrun ...] -m cpdrun.train.rank RUN_DIR (a folder with config.yaml)", file=sys.stderr
        )
        return 2
    return run_rank(arguments[0])


def run_rank(run_dir: str) -> int:
    """Train as the rank that the environment variables RANK and WORLD_SIZE define.

    Returns:
        The exit status: 0 if the run is finished, 75 if it stopped on request, 2 if a part of it cannot be made. Other
        errors are raised, or printed if there are several ranks.
    """
    rank = int(os.environ.get("RANK", "0"))
    if "CPDRUN_ATTEMPT_DIR" in os.environ:
        attempt = Attempt(Path(os.environ["CPDRUN_ATTEMPT_DIR"]))
        _log_to(attempt.rank_log(rank))
        if rank == 0:
            heartbeat.start(attempt.pulse)
    run = RunDir(Path(run_dir))
    config = revealed(read_config(run))
    configure_torch(config)
    keep_freed_memory()
    workers = Workers.from_environment(config["world_size"])
    try:
        device = select_device(config["device"])
    except UserError as error:
        return _refused(error)
    journal = Journal(run, rank)
    try:
        if workers.ranks > 1:
            meet(backend_for(device), config["patience_s"])
        with naming_lost_ranks() if workers.ranks > 1 else nullcontext():
            result = _train(config, workers, device, journal)
        journal.done(result, device)
        if journal.writes and not config["checkpoint"].get("keep", True):  # older configs have no key `keep`
            shutil.rmtree(run.checkpoint.parent, ignore_errors=True)
        code = 0
    except Preempted:
        code = EXIT_PREEMPTED
    except UserError as error:
        return _leave(_refused(error), workers)
    except Exception:
        if workers.ranks == 1:
            raise
        traceback.print_exc()
        return _leave(1, workers)
    if dist.is_initialized():
        dist.destroy_process_group()
    return code


def _leave(code: int, workers: Workers) -> int:
    """Return the exit status after an error, or exit immediately if there are other ranks.

    The destructor of gloo would wait for ranks that hang.
    """
    if workers.ranks > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _train(config: dict[str, Any], workers: Workers, device: torch.device, journal: Journal) -> Result:
    parts = build(config, device)
    heartbeat.beat()  # data and model are built; now the watchdog's patience applies to the first step
    products = emulated_products(parts)
    if products:
        print(f"multiply-accumulates: {shares_text(products['coverage'])}", flush=True)
    journal.environment(device, parts.data, config, products)
    return train(config, parts, workers, device, journal)


def _refused(error: UserError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code


def _log_to(path: Path) -> None:
    """Redirect stdout and stderr of this process to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
