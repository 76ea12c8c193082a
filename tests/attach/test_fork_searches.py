"""Searches whose runs start from one checkpoint: stopped, continued, and after a change of the checkpoint."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from cpdrun.cli import main

SCRIPT = Path(__file__).with_name("resuming_script.py")
SEARCH = ("format=fp32,e3m0", "aps=false", "world_size=1", "search.most_seeds=3", "name=forks", "--jobs", "1")


@pytest.fixture
def search(tmp_path, monkeypatch, capfd):
    """Search in a folder of its own, and return the document of the command."""
    monkeypatch.chdir(tmp_path)

    def search(*words: str) -> dict:
        capfd.readouterr()
        assert main(["search", *words, *SEARCH, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    return search


@pytest.fixture
def save(monkeypatch):
    """Train the script for some steps in this process, and save its checkpoint."""

    def save(path: Path, steps: int) -> None:
        monkeypatch.setattr(sys, "argv", ["train.py", "--steps", str(steps), "--save", str(path)])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return save


@pytest.mark.timeout(300)
def test_a_search_of_a_script_that_resumes_from_a_checkpoint(search, save, tmp_path):
    shutil.copy(SCRIPT, tmp_path / "train.py")
    save(tmp_path / "ckpt.pt", 100)
    words = ("script=train.py", "script_args=--resume ckpt.pt", "search.tolerance=0.03")
    assert search(*words, "--budget", "2")["runs"] == 2
    found = search(*words, "--budget", "4")
    assert found["runs"] == 4
    (test,) = found["fork_tests"]
    assert test["checkpoint"] == str(tmp_path / "ckpt.pt") and test["metric"] == "train_loss"
    assert test["steps"] == [[101, 106], [107, 112], [113, 118], [119, 124]]
    (candidate,) = test["candidates"]
    assert candidate["candidate"] == "e3m0 without APS" and candidate["pairs"] == 2
    assert all(gap["mean"] is not None for gap in (*candidate["parts"], candidate["growth"]))
    assert test["control"]["seeds"] == 2 and min(test["control"]["parts"]) > 0
    assert any(line.startswith("Fork test: all runs start from ") for line in found["says"])
    save(tmp_path / "ckpt.pt", 120)
    assert search(*words, "--dry-run")["runs"] == 0  # another checkpoint, so other runs


@pytest.mark.timeout(300)
def test_a_search_of_our_own_training_from_a_checkpoint(search, make_run, train_here):
    tiny = ("exp=digits_bits", "model.width=4", "data.test_fraction=0.9", "optim=adamw", "schedule=constant")
    trained = make_run("format=fp32", "aps=false", *tiny[1:], "world_size=1", "epochs=3")
    assert train_here(trained) == 0
    words = (*tiny, f"init_from={trained.checkpoint}", "init_optimizer=true", "max_steps=8", "device=cpu")
    words = (*words, "search.metric=test_loss", "search.tolerance=0.05", "search.start=widest")
    search(*words, "--budget", "2")
    (test,) = search(*words, "--budget", "4")["fork_tests"]
    assert test["steps"] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert [each["pairs"] for each in test["candidates"]] == [2]
    assert test["control"]["seeds"] == 2
