"""An engine whose ranks only pretend to train. The config of a run says what its ranks do.

    python -m stand_in cpdrun.train.engine --warm FD ...      run the engine, with ranks that pretend to train
    python -m stand_in MODULE ...                             run any other module, unchanged

`act` is finish, diverge, crash, out_of_memory, exit (with `code`), kill (itself), silent (leaves no result),
once_killed (kills itself on the first attempt) or daemon (leaves a process behind). Each of `epochs` takes `epoch_s`
seconds. Like a real run, it records its epochs (in `trace.txt` of the run), continues after the last recorded epoch,
and stops if the preempt file exists. With `meet`, the ranks form a process group and sum their numbers. The rank
`absent` never joins. If `kill_check` is set, the check before the start kills its own process. Otherwise, if
`slow_check` names a file, the check empties the file and waits until it is deleted.
"""

import os
import runpy
import signal
import sys
import time
import types
from pathlib import Path

import yaml

from cpdrun.record import Attempt, RunDir, append_json_line, write_json
from cpdrun.train import engine
from cpdrun.train.ranks import heartbeat


def run_rank(run_dir: str) -> int:
    rank = int(os.environ["RANK"])
    attempt = Attempt(Path(os.environ["CPDRUN_ATTEMPT_DIR"]))
    fd = os.open(attempt.rank_log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    run = RunDir(Path(run_dir))
    config = yaml.safe_load(run.config.read_text())
    print("rank", rank, "of", os.environ["WORLD_SIZE"], "pid", os.getpid(), flush=True)
    write_json(run.path / f"seen{rank}.json", {key: os.environ.get(key) for key in config.get("show", [])})
    trace = run.path / "trace.txt"
    done = len(trace.read_text().splitlines()) if trace.exists() else 0
    if rank == 0:
        heartbeat.start(attempt.pulse)
    while rank == config.get("absent"):
        time.sleep(1)
    if config.get("meet"):
        meet_and_add(rank, config["patience_s"])
    for epoch in range(done + 1, config["epochs"] + 1):
        heartbeat.beat()
        if run.preempt.exists():
            run.checkpoint.parent.mkdir(exist_ok=True)
            run.checkpoint.touch()
            return os.EX_TEMPFAIL
        time.sleep(config["epoch_s"])
        if rank == 0:
            with trace.open("a") as file:
                file.write(f"{epoch}\n")
            append_json_line(run.metrics, {"epoch": epoch, "test_accuracy": 0.5})
            progress = {"epoch": epoch, "epochs": config["epochs"], "test_accuracy": 0.5}
            write_json(run.status, {**progress, "updated": time.time()})
    if config["act"] == "once_killed" and attempt.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if config["act"] == "daemon" and os.fork() == 0:
        os.setsid()
        (run.path / "left").write_text(str(os.getpid()))
        time.sleep(600)
    end(config, rank)
    if rank == 0 and config["act"] != "silent":
        status = "diverged" if config["act"] == "diverge" else "finished"
        seconds = config["epochs"] * config["epoch_s"]
        write_json(run.done, {"status": status, "metrics": {"test_accuracy": 0.5}, "train_seconds": seconds})
    return 0


def meet_and_add(rank: int, patience_s: float) -> None:
    import torch
    import torch.distributed as dist

    from cpdrun.train.ranks.rendezvous import meet

    torch.set_num_threads(1)
    meet("gloo", patience_s)
    total = torch.tensor([rank])
    dist.all_reduce(total)
    ranks = dist.get_world_size()
    assert total.item() == ranks * (ranks - 1) // 2
    dist.barrier()
    dist.destroy_process_group()


def end(config: dict, rank: int) -> None:
    if rank != config.get("failing_rank", 0):
        return
    if config["act"] == "crash":
        raise ValueError("the weights are sour")
    if config["act"] == "out_of_memory":
        raise MemoryError("Unable to allocate 3 TiB")
    if config["act"] == "exit":
        sys.exit(config["code"])
    if config["act"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def check(configs: list[dict]) -> dict[str, list[str]]:
    for config in configs:
        if config.get("kill_check"):
            os.kill(os.getpid(), signal.SIGKILL)
        if config.get("slow_check") and Path(config["slow_check"]).exists():
            os.truncate(config["slow_check"], 0)
        while config.get("slow_check") and Path(config["slow_check"]).exists():
            time.sleep(0.05)
    problems = [f"no such data: {config['data']}" for config in configs if config.get("data") == "missing"]
    return {"problems": problems, "notes": []}


def install() -> None:
    """Make the engine of this process use `run_rank` and `check` of this file instead of the real functions."""
    worker, preflight = map(types.ModuleType, ("cpdrun.train.rank", "cpdrun.train.preflight.check"))
    worker.run_rank, preflight.check = run_rank, check
    sys.modules |= {"cpdrun.train.rank": worker, "cpdrun.train.preflight.check": preflight}
    import cpdrun.train.preflight

    cpdrun.train.rank, cpdrun.train.preflight.check = worker, preflight
    # No training step is taken here.
    engine.FIRST_STEP_IMPORTS = ["torch.distributed.launcher.api", "cpdrun.train.ranks.rendezvous"]


if __name__ == "__main__":
    if sys.argv[1] != "cpdrun.train.engine":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    install()
    engine.main(sys.argv[2:])
