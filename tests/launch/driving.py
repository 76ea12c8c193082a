"""Helpers of the launcher's tests: make jobs, drive an executor, wait, look at processes."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from script import DEFAULTS

from cpdrun.launch.base import Executor, Job
from cpdrun.launch.session import write_configs
from cpdrun.parent import RUNNER_VARIABLE
from cpdrun.record import SweepDir
from cpdrun.sweep import plan

# A search that takes nine runs of a second: three pairs certify e4m3, three refute e3m0 without APS.
TINY_SEARCH = (
    "exp=digits_search",
    "world_size=2",
    "batch_size=32",
    "epochs=2",
    "model.width=4",
    "format=fp32,e4m3,e3m0",
    "aps=false",
    "search.tolerance=20",
    "device=cpu",
)
HERE = Path(__file__).parent
DEADLINE_S = 150  # for events that take seconds on an idle machine; pytest ends a test after 300


def make_job(sweep: SweepDir, name: str, **config: Any) -> Job:
    job = Job(sweep.run(name), {**DEFAULTS, "format": "e4m3", **config}, [f"name={name}"])
    write_configs([job])
    return job


def make_training_job(sweep: SweepDir, *typed: str) -> Job:
    """A small run of digits that really trains: 46 steps of 8 workers at e4m3 with APS."""
    small = (
        "epochs=2",
        "model.width=4",
        "device=cpu",
        f"results_dir={sweep.path.parent}",
        f"name={sweep.name}",
    )
    (planned,) = plan(["exp=digits_bits", "format=e4m3", "aps=true", "seed=0", *small, *typed]).runs
    job = Job(sweep.run(planned.name), planned.config, planned.overrides)
    write_configs([job])
    return job


def dawdling(file: Path, *, pause_s: float = 0.1, hang_rank: str = "null") -> list[str]:
    """Return the words for a run that is slow or hangs while `file` exists (see dawdling_digits.py)."""
    knobs = {"while_exists": file, "pause_s": pause_s, "hang_rank": hang_rank}
    return [
        "data._target_=dawdling_digits.DawdlingDigits",
        *(f"+data.{key}={value}" for key, value in knobs.items()),
    ]


@contextlib.contextmanager
def training() -> Iterator[None]:
    """Engines that start in this context really train. Elsewhere in these tests, a stand-in pretends to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(RUNNER_VARIABLE, raising=False)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
        yield


def drive(executor: Executor, jobs: list[Job]) -> dict[str, dict[str, Any]]:
    """Run `jobs` until they end, and return the outcome of each by name."""
    executor.submit(jobs)
    return finish(executor)


def finish(executor: Executor, deadline_s: float = DEADLINE_S) -> dict[str, dict[str, Any]]:
    outcomes = {}
    deadline = time.monotonic() + deadline_s
    while executor.unfinished:
        assert time.monotonic() < deadline, f"still running: {executor.running}"
        for event in executor.poll(0.1):
            if event.outcome:
                outcomes[event.job.run.name] = event.outcome
    return outcomes


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until `condition()` is true, and return it."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
    return value


def processes_of(path: Path) -> list[int]:
    """Processes whose command line or open files name something under `path`: agents, engines and ranks."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            names = [(process / "cmdline").read_bytes().decode(errors="replace")]
            names += [os.readlink(fd) for fd in (process / "fd").iterdir()]  # noqa: PTH115
        except OSError:
            continue
        if any(str(path) in name for name in names):
            found.append(int(process.name))
    return found


def family(job) -> dict[str, int]:
    """The processes of a running job: the rank names itself in its log, its parents are engine and agent."""
    log = wait_for(lambda: job.run.last_attempt().rank_log(0).read_text().split(), "the rank's first line")
    rank = int(log[log.index("pid") + 1])
    agent = job.run.last_attempt().agent_log.read_text().split("agent ")[1].split()[0]
    return {"rank": rank, "engine": _parent(rank), "agent": int(agent)}


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return int(file.read().rsplit(")", 1)[1].split()[1])
