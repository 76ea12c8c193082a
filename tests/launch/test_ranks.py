"""Ranks that die or hang while they train: the run fails soon, and the error names the rank."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from driving import DEADLINE_S, dawdling, processes_of, training, wait_for

from cpdrun.record import RunDir, State, SweepDir, state_of

RUN = [
    "exp=digits_bits",
    "format=e4m3",
    "aps=true",
    "seed=0",
    "epochs=50",
    "model.width=4",
    "device=cpu",
    "nproc=2",
]


def test_dead_and_hanging_ranks_are_named(tmp_path):
    slow = tmp_path / "slow"
    slow.touch()
    typed = [*RUN, *dawdling(slow, hang_rank="null,1"), "patience_s=3", f"results_dir={tmp_path}"]
    with training():
        launcher = subprocess.Popen(
            [sys.executable, "-m", "cpdrun.cli", "sweep", *typed, "--jobs", "4"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    runs = wait_for(lambda: begun(SweepDir(tmp_path / "digits_bits")), "both runs")
    hanging, dying = sorted(runs, key=lambda run: "hang_rank: null" in run.config.read_text())
    victim = wait_for(lambda: process_of_rank(dying, 1), "rank 1")
    wait_for(lambda: process_of_rank(dying, 0), "rank 0")
    time.sleep(1.0)  # into the training
    os.kill(victim, signal.SIGKILL)

    wait_for(lambda: dying.attempts()[0].exit.exists(), "the end of the run")
    text, _ = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 1, text
    assert {state_of(run) for run in (hanging, dying)} == {State.FAILED}
    reasons = [run.attempts()[0].outcome().reason for run in (dying, hanging)]
    assert "rank 1 was killed by SIGKILL" in reasons[0]
    assert "rank 1 did not come to an exchange in time; rank 0 stops (Timed out waiting 3000ms" in reasons[1]
    assert all(reason in text for reason in reasons)
    assert not processes_of(tmp_path)


def begun(sweep: SweepDir) -> list[RunDir] | None:
    runs = [run for run in sweep.runs() if run.attempts()]
    return runs if len(runs) == 2 else None


def process_of_rank(run: RunDir, rank: int) -> int | None:
    """The process that writes the log of `rank`."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and (process / "fd/1").readlink() == run.attempts()[0].rank_log(rank):
                return int(process.name)
        except OSError:
            continue
    return None
