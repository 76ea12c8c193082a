"""Searches of a script whose runs stop at a NaN loss are never certified; a run that was killed is tried again."""

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from cpdrun.cli import main
from cpdrun.record import SweepDir
from cpdrun.report.failures_text import failures_text
from cpdrun.stats.evidence import Verdict
from cpdrun.study.reader import read_study

SCRIPT = Path(__file__).with_name("failing_script.py")
WORDS = (
    "format=fp32,e4m3",
    "world_size=1",
    "aps=false",
    "search.tolerance=0.05",
    "name=found",
    "--jobs",
    "2",
)


@pytest.fixture
def search(tmp_path, monkeypatch, capfd):
    """Search in a folder of its own, and return the facts that the command tells."""
    shutil.copy(SCRIPT, tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)

    def search(stop: str, most_seeds: int, *options: str) -> dict:
        script = ["script=train.py", f"script_args=--seed {{seed}} --stop {stop}"]
        metric = "script.metrics.val_loss=val loss ([0-9.]+)"
        main(["search", *script, metric, *WORDS, f"search.most_seeds={most_seeds}", "--json", *options])
        return json.loads(capfd.readouterr().out)

    return search


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("stop", "how"), [("error", ""), ("quietly", " (2 stopped early)")])
def test_a_format_with_failed_seeds_is_open(search, stop, how):
    found = search(stop, 4)
    answer = next(line for line in found["says"] if "8 bits" in line)
    assert answer.startswith("OPEN: no format without APS is certified")
    assert answer.endswith(f"after 4 pairs, 2 of 4 runs failed{how}.")
    ((candidate,),) = (chain["candidates"] for chain in found["chains"])
    assert candidate["verdict"] == "open" and candidate["at_most_fail"] == pytest.approx(0.902, abs=1e-3)
    assert (candidate["runs_failed"], candidate["runs_ended"], candidate["pairs"]) == (2, 4, 4)
    study = read_study([SweepDir(Path("results/found"))])
    ((group, judged),) = study.judged.items()
    assert judged.verdict is Verdict.OPEN and failures_text(judged.failures) == f"2 of 4 runs failed{how}"
    assert judged.judgment.mean == pytest.approx(candidate["difference"])
    assert not study.may_be_within(group)
    looked_at_again = search(stop, 4, "--dry-run")
    assert looked_at_again["says"][0] == found["says"][0]


@pytest.mark.timeout(300)
def test_a_killed_run_is_retried_and_not_counted_as_failed(search, tmp_path):
    def kill_the_script() -> None:
        while not (waiting := tmp_path / "waiting").exists() or not waiting.read_text():
            time.sleep(0.05)
        (tmp_path / "go").touch()
        os.kill(int(waiting.read_text()), signal.SIGKILL)

    thread = threading.Thread(target=kill_the_script, daemon=True)
    thread.start()
    found = search("wait", 3)
    ((candidate,),) = (chain["candidates"] for chain in found["chains"])
    assert candidate["verdict"] == "certified" and candidate["runs_failed"] == 0
    assert candidate["at_most_fail"] == pytest.approx(1 - 0.05 ** (1 / 3))
    assert "0 of 3 runs failed (with 95% confidence at most 63% fail)" in found["says"][0]
    (killed,) = (run for run in SweepDir(Path("results/found")).runs() if len(run.attempts()) > 1)
    assert [attempt.outcome().status for attempt in killed.attempts()] == ["killed", "finished"]
