"""`cpdrun cancel` stops a command from the moment in which that is typed, also while it is still starting."""

import os
import subprocess
import sys
import time

import pytest
from driving import DEADLINE_S, TINY_SEARCH, training

from cpdrun.launch.cancel import cancel_sweep
from cpdrun.record import SweepDir, cancellation, cancellation_before

COMMANDS = {
    "sweep": ["sweep", "exp=digits_bits", "epochs=1", "device=cpu", "name=one"],
    "search": ["search", *TINY_SEARCH, "name=one"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_cancelled_before_it_has_read_its_settings(command, tmp_path):
    sweep = SweepDir(tmp_path / "one")
    sweep.path.mkdir()
    cancel_sweep(sweep)  # of a command before this one, which has no say
    time.sleep(0.1)
    with training():
        typed = subprocess.Popen(
            [sys.executable, "-m", "cpdrun.cli", *COMMANDS[command], f"results_dir={tmp_path}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    time.sleep(0.1)
    cancel_sweep(sweep)
    said, _ = typed.communicate(timeout=DEADLINE_S)
    assert typed.returncode == 130, said
    assert "Cancelled from another shell. Nothing was started." in said
    assert not any(run.attempts() for run in sweep.runs())


def test_an_earlier_cancellation_does_not_count(sweep):
    sweep.path.mkdir(parents=True)
    assert cancellation_before(sweep, 5) is None
    cancel_sweep(sweep)
    then = cancellation(sweep)
    os.utime(sweep.stop, ns=(then - 10**10, then - 10**10))
    assert cancellation_before(sweep, 5) == cancellation(sweep)
    assert cancellation_before(sweep, 15) is None


def test_the_clock_of_the_file_system_decides(sweep):
    """A server stamps files 100 s ahead of this machine."""
    sweep.path.mkdir(parents=True)
    cancel_sweep(sweep)
    ahead = time.time_ns() + 100 * 10**9
    os.utime(sweep.stop, ns=(ahead, ahead))
    assert (
        cancellation_before(sweep, 0) is None
    )  # without a file to compare with, it looks as if it came just now
