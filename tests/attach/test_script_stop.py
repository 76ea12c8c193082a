"""A script that is to stop: told when it asks, by SIGTERM when it does not; it goes on from what it saved."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpdrun.launch import Job
from cpdrun.launch.session import write_configs
from cpdrun.sweep import plan

SCRIPT = Path(__file__).with_name("saving_script.py")
RANK = "import sys; from cpdrun.attach.rank import run_rank; sys.exit(run_rank(sys.argv[1]))"
PATIENCE_S = 600.0


def start(run):
    """A rank of the next attempt, as the engine starts it."""
    attempt = run.new_attempt()
    environ = os.environ | {"CPDRUN_ATTEMPT_DIR": str(attempt.path), "OMP_NUM_THREADS": "1"}
    return attempt, subprocess.Popen([sys.executable, "-c", RANK, str(run.path)], env=environ)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One that asks and one that does not, both stopped once they had begun: the run, its attempt, the exit code."""
    folder = tmp_path_factory.mktemp("stop")
    shutil.copy(SCRIPT, folder)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in ("", "--ask"):
            (planned,) = (sweep := plan(["script=saving_script.py", f"script_args={words}"])).runs
            run = sweep.directory.run(planned.name)
            write_configs([Job(run, planned.config, [])])
            found[words] = (run, *start(run))
        deadline = time.monotonic() + PATIENCE_S
        while not all(run.metrics.exists() for run, *_ in found.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for run, *_ in found.values():
            run.preempt.touch()
        yield {words: (run, attempt, rank.wait(PATIENCE_S)) for words, (run, attempt, rank) in found.items()}


@pytest.mark.parametrize("words", ["", "--ask"])
def test_a_script_saves_and_stops(runs, words):
    run, attempt, code = runs[words]
    assert code == os.EX_TEMPFAIL and not run.done.exists()
    assert int((run.checkpoint.parent / "step").read_text()) > 0
    log = attempt.rank_log(0).read_text()
    assert ("gets SIGTERM" in log) == (words == "")
    assert attempt.polls_stop.exists() == attempt.stop_delivered.exists() == (words == "--ask")


def test_a_stopped_script_continues_with_its_logged_rows(runs):
    run, _, _ = runs["--ask"]
    saved = int((run.checkpoint.parent / "step").read_text())
    run.preempt.unlink()
    _, rank = start(run)
    assert rank.wait(PATIENCE_S) == 0
    steps = [row.step for row in run.logged()]
    assert steps == list(range(1, 1001)) and saved < 1000
    assert run.result().metrics == {"val_loss": 1 / 1000}
