"""`cpdrun cancel` stops a command from the moment in which that is typed, also while it is still starting."""

import os
import signal
import subprocess
import sys
import time

import pytest
from driving import DEADLINE_S, TINY_SEARCH, training
from rich.console import Console

from cpdrun.errors import INTERRUPTED, OK
from cpdrun.launch import Display, Event, Job, LaunchOptions, Session
from cpdrun.launch.base import Executor
from cpdrun.launch.cancel import cancel_sweep
from cpdrun.record import Ending, Outcome, SweepDir, cancellation, cancellation_before

COMMANDS = {
    "sweep": ["sweep", "exp=digits_bits", "epochs=1", "device=cpu", "name=one"],
    "search": ["search", *TINY_SEARCH, "name=one"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_cancelled_before_it_has_read_its_settings(command, tmp_path):
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
    assert "Canceled from another shell. Nothing was started." in said
    assert not any(run.attempts() for run in sweep.runs())


class EndsAtCtrlC(Executor):
    """Ends each job well, and presses Ctrl-C just before: the job was at its end."""

    slots = 1

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, jobs: list[Job]) -> None:
        self.jobs += jobs

    def poll(self, timeout_s: float) -> list[Event]:
        os.kill(os.getpid(), signal.SIGINT)
        return [Event(self.jobs.pop(), Outcome(Ending.FINISHED))]

    def cancel(self, *, now: bool) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def running(self) -> list[Job]:
        return []

    @property
    def unfinished(self) -> int:
        return len(self.jobs)


@pytest.mark.parametrize(("further", "code"), [(1, INTERRUPTED), (0, OK)])
def test_ctrl_c_while_a_run_ends_counts_the_runs_that_would_have_followed(
    sweep, job, monkeypatch, further, code
):
    monkeypatch.setattr("cpdrun.launch.session.make_executor", lambda *_: EndsAtCtrlC())
    first, second = job(), job()
    display = Display(Console(quiet=True), [])
    summary = Session().launch(
        sweep, [first], {}, LaunchOptions(), display, None, more=lambda _: [second][:further]
    )
    assert (summary.done, summary.interrupted, summary.exit_code) == (1, further, code)


def test_an_earlier_cancellation_does_not_count(sweep):
    sweep.path.mkdir(parents=True)
    assert cancellation_before(sweep, 5) is None
    cancel_sweep(sweep)
    then = cancellation(sweep)
    os.utime(sweep.stop, ns=(then - 10**10, then - 10**10))
    assert cancellation_before(sweep, 5) == cancellation(sweep)
    assert cancellation_before(sweep, 15) is None


def test_a_command_right_after_a_cancellation_is_not_cancelled(sweep):
    """The times of files change only with each tick of a clock, so files can have older times than the command."""
    sweep.path.mkdir(parents=True)
    sweep.lock.touch()
    for _ in range(100):
        cancel_sweep(sweep)
        began = time.monotonic()
        time.sleep(0.003)
        assert cancellation_before(sweep, time.monotonic() - began) == cancellation(sweep)


def test_times_are_compared_by_the_clock_of_the_file_system(sweep):
    """A server stamps files 100 s ahead of this machine."""
    sweep.path.mkdir(parents=True)
    cancel_sweep(sweep)
    ahead = time.time_ns() + 100 * 10**9
    os.utime(sweep.stop, ns=(ahead, ahead))
    assert (
        cancellation_before(sweep, 0) is None
    )  # without a file to compare with, it looks as if it came just now
