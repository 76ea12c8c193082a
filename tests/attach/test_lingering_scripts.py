"""A run of a script ends when its ranks do, whatever they leave behind, and a rank that does not end is ended."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from cpdrun.cli import main
from cpdrun.record import Ending, SweepDir

SCRIPT = Path(__file__).with_name("lingering_script.py")
PATIENCE_S = 6
SILENT = f"no output, no run.log() and no optimizer step in {PATIENCE_S} s (patience_s)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The run of each way to end, out of one sweep; what they left behind is killed at the end."""
    folder = tmp_path_factory.mktemp("lingering")
    shutil.copy(SCRIPT, folder)
    words = ["sweep", f"script={SCRIPT.name}", "script.args.do=daemon,command,stopped,waits", "nproc=2"]
    words += ["script.metrics.val_loss=val_loss=([0-9.]+)", f"patience_s={PATIENCE_S}", "--jobs", "4"]
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        try:
            assert main(words) == 1
            for run in SweepDir(folder / "results" / SCRIPT.stem).runs():
                found[run.overrides.read_text().split("script.args.do=")[1].split()[0]] = run
            yield found
        finally:
            for left in folder.glob("results/*/runs/*/left"):
                with suppress(ProcessLookupError):
                    os.kill(int(left.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("do", "name"),
    [("daemon", f"a fork of {SCRIPT.name}"), ("command", "sleep 600")],
    ids=["fork", "command"],
)
def test_processes_left_behind_are_named_and_not_waited_for(runs, do, name):
    attempt = runs[do].last_attempt()
    assert attempt.outcome().status is Ending.FINISHED
    assert ", warm start" in attempt.agent_log.read_text()  # forks of a warm process are not named
    left = int((runs[do].path / "left").read_text())
    os.kill(left, 0)  # it is alive
    assert attempt.outcome().left_running == f"{left} ({name})"
    said = f"lingering_script.py has ended, but left processes running: {left} ({name})\n"
    assert said in attempt.rank_log(0).read_text()


@pytest.mark.parametrize("do", ["stopped", "waits"])
def test_killed_runs_leave_no_process_behind(runs, do):
    assert runs[do].last_attempt().outcome().left_running is None


def test_a_rank_stopped_by_a_signal_is_named(runs):
    outcome = runs["stopped"].last_attempt().outcome()
    assert (outcome.status, outcome.rank) == (Ending.FAILED, 1)
    assert outcome.reason == f"rank 1 was stopped by a signal: {SILENT}"


def test_a_rank_that_does_not_end_is_killed_after_the_patience(runs):
    outcome = runs["waits"].last_attempt().outcome()
    assert (outcome.status, outcome.reason) == (Ending.FAILED, f"hung or stopped: {SILENT}")
