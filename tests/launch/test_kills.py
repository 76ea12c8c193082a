"""A sweep that really trains is interrupted once, and one process of each kind is killed: it ends as if nothing had
been."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driving import DEADLINE_S, processes_of, wait_for

from cpdrun.parent import RUNNER_VARIABLE
from cpdrun.record import RunDir, SweepDir, read_json

KINDS = ("launcher", "warm process", "agent", "engine", "rank")  # scripts/checks/soak.py: 200 kills, of any
SEED = 0
RUNS = ["exp=digits_bits", "format=e4m3,e3m0", "aps=true,false", "seed=0", "epochs=6", "device=cpu"]


def sweep_command(results: Path) -> list[str]:
    return [sys.executable, "-m", "cpdrun.cli", "sweep", *RUNS, f"results_dir={results}"]


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != RUNNER_VARIABLE}


def of_kind(kind: str, launcher: int) -> list[int]:
    """The processes of that kind among the launcher and its descendants."""
    if kind == "launcher":
        return [launcher]
    below = children()
    warm = [pid for pid in below.get(launcher, []) if "cpdrun.train.engine" in command_of(pid)]
    engines = [pid for parent in warm for pid in below.get(parent, [])]
    return {
        "warm process": warm,
        "agent": [pid for pid in below.get(launcher, []) if "cpdrun.launch.attempt.agent" in command_of(pid)],
        "engine": engines,
        "rank": [pid for parent in engines for pid in below.get(parent, [])],
    }[kind]


def children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            found.setdefault(parent, []).append(int(process.name))
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.timeout(600)
def test_an_interruption_and_a_kill_of_each_kind_of_process_change_no_bit(tmp_path):
    dice = random.Random(SEED)
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    subprocess.run(sweep_command(calm), env=environment(), check=True, capture_output=True)
    expected = weights(calm)
    assert len(expected) == 4

    stop_gently(stormy)
    to_come = dice.sample(KINDS, len(KINDS))
    finished: dict[str, int] = {}  # when each run was seen to be done
    while to_come:
        launcher = subprocess.Popen(
            sweep_command(stormy), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while launcher.poll() is None and to_come:
            wait_for(lambda p=launcher: p.poll() is not None or of_kind(to_come[-1], p.pid), to_come[-1])
            time.sleep(dice.uniform(0.0, 0.5))
            note_finished(stormy, finished)
            if kill_one(dice, of_kind(to_come[-1], launcher.pid)):
                to_come.pop()
        launcher.wait()
        wait_for(lambda: not processes_of(stormy), "the end of every process")
        assert len(finished) < len(expected), (
            f"the sweep was over before the kill of {to_come}: train for longer"
        )
    last = subprocess.run(
        sweep_command(stormy), env=environment(), capture_output=True, text=True, check=False
    )
    assert last.returncode == 0, last.stdout
    note_finished(stormy, finished)
    assert weights(stormy) == expected
    for run in sweep_of(stormy).runs():
        outcomes = [(read_json(attempt.exit) or {}).get("outcome") for attempt in run.attempts()]
        assert run.done.stat().st_mtime_ns == finished[run.name], f"{run.name} was done twice: {outcomes}"
    assert not processes_of(stormy)


def weights(results: Path) -> dict[str, str | None]:
    """The digest of each run's final weights; None where it is not done."""
    return {run.name: (read_json(run.done) or {}).get("weights_sha256") for run in sweep_of(results).runs()}


def stop_gently(results: Path) -> None:
    """Interrupt a sweep once, in the middle of an epoch: it ends by itself, with its runs saved."""
    launcher = subprocess.Popen(sweep_command(results), env=environment(), stdout=subprocess.DEVNULL)
    first = begun(results)[0]
    wait_for(first.metrics.exists, "the first epoch")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=DEADLINE_S) == 130
    assert first.done.exists() or first.checkpoint.exists()
    assert not processes_of(results)


def begun(results: Path) -> list[RunDir]:
    """The runs that have begun, once there are any."""
    return wait_for(lambda: [run for run in sweep_of(results).runs() if run.attempts()], "a first run")


def sweep_of(results: Path) -> SweepDir:
    return SweepDir(results / "digits_bits")


def note_finished(results: Path, finished: dict[str, int]) -> None:
    for run in sweep_of(results).runs():
        if run.done.exists():
            finished.setdefault(run.name, run.done.stat().st_mtime_ns)


def kill_one(dice: random.Random, victims: list[int]) -> bool:
    if not victims:
        return False
    try:
        os.kill(dice.choice(sorted(victims)), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
