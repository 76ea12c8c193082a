"""Searches that end at once: planned once, run in a folder of the test's own."""

import io
import math
from dataclasses import replace

import pytest
from instant_executor import Instant
from rich.console import Console

from cpdrun.launch import LaunchOptions, Session
from cpdrun.record import SweepDir
from cpdrun.search.drive import SearchDisplay, search
from cpdrun.search.results import Results


@pytest.fixture(autouse=True)
def as_new(monkeypatch):
    monkeypatch.setattr(Instant, "cut_after", math.inf)
    monkeypatch.setattr(Instant, "failing", ())
    monkeypatch.setattr(Instant, "rounds", [])
    monkeypatch.setattr("os.fsync", lambda fd: None)


@pytest.fixture
def launch():
    """The results of a question in a folder, the lines that the search prints, and its exit codes."""

    def launch(question, folder, slots=2):
        results = Results(replace(question, directory=SweepDir(folder)))
        console = Console(file=io.StringIO(), width=200)
        launcher = {"_target_": "instant_executor.Instant", "slots": slots}
        display = SearchDisplay(console, [], results)
        with Session() as session:
            summaries = search(session, results, launcher, LaunchOptions(), display, None)
        return results, console.file.getvalue(), [summary.exit_code for summary in summaries]

    return launch
