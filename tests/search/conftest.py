"""Searches whose runs end at once. Each is planned only once, and runs in the folder of the test."""

import io
import math
from dataclasses import replace
from functools import cache

import pytest
from instant_executor import Instant
from rich.console import Console

from cpdrun.commands.search_display import SearchDisplay
from cpdrun.launch import LaunchOptions, Session
from cpdrun.record import SweepDir
from cpdrun.search.loop import search
from cpdrun.search.question import ask
from cpdrun.search.results import Results
from cpdrun.search.settings import budget as parsed


@cache
def _asked(*typed):
    """Return the planned search. It is cached, because planning takes longer than all these runs."""
    return ask(list(typed))


@pytest.fixture(autouse=True)
def as_new(monkeypatch):
    monkeypatch.setattr(Instant, "cut_after", math.inf)
    monkeypatch.setattr(Instant, "failing", ())
    monkeypatch.setattr(Instant, "rounds", [])
    monkeypatch.setattr("os.fsync", lambda fd: None)


@pytest.fixture
def launch():
    """launch(question, folder) -> the results of the search, the lines that it prints, and its exit codes."""

    def launch(question, folder, slots=2):
        results = Results(replace(question, directory=SweepDir(folder)))
        console = Console(file=io.StringIO(), width=200)
        launcher = {"_target_": "instant_executor.Instant", "slots": slots}
        display = SearchDisplay(console, [], results)
        with Session() as session:
            summaries = search(session, results, launcher, LaunchOptions(), display, None, display.on_end)
        return results, console.file.getvalue(), [summary.exit_code for summary in summaries]

    return launch


@pytest.fixture
def asked(request):
    """asked(*typed) -> the planned search for the words in TYPED of the test module and in `typed`."""
    return lambda *typed: _asked(*request.module.TYPED, *typed)


@pytest.fixture
def go(asked, tmp_path, launch):
    """go(*typed) -> the results of a search for these words, the lines that it prints, and its exit codes."""

    def go(*typed, folder="here", slots=2, budget=None):
        question = asked(*typed)
        limits = replace(question.settings, budget=parsed(budget))
        return launch(replace(question, settings=limits), tmp_path / folder / "found", slots)

    return go


@pytest.fixture
def predictions(monkeypatch):
    """The chance of each format to fail, in place of predictions from a run. Tests may change it."""
    chances = {"e4m3": 0.1, "e3m2": 0.2, "e3m0": 0.4, "e2m0": 0.9}

    def with_chances(question, ladder, run, strict):
        def of(candidate):
            return replace(candidate, chance=chances[candidate.label.split()[0]])

        return replace(ladder, widths=tuple(tuple(map(of, width)) for width in ladder.widths))

    monkeypatch.setattr("cpdrun.search.results.with_chances", with_chances)
    return chances
