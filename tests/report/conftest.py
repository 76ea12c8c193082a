"""Sweeps on disk and reports on them, for the tests of this folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up import Sweep, fill_digits


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """Hundreds of runs are written here, and none needs to outlive a power cut."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


@pytest.fixture
def new_sweep(tmp_path: Path) -> Callable[..., Sweep]:
    """Start an empty sweep of that name."""

    def make(name: str = "digits_bits") -> Sweep:
        sweep = Sweep(tmp_path / "results" / name)
        sweep.dir.runs_folder.mkdir(parents=True)
        return sweep

    return make


@pytest.fixture
def digits(new_sweep) -> Sweep:
    """A finished sweep: 7 formats, APS or not, 3 seeds; 39 runs."""
    return fill_digits(new_sweep())


@pytest.fixture
def pictures():
    """Draw the pictures of reports. Without this fixture, reports have none, because they take most of the time."""


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("cpdrun.report.plots.available", lambda: iter(()))


@pytest.fixture
def report():
    """Write a report on the given sweeps. `.printed` is the output, `.answers` the sentences without the margin's."""
    import io
    from dataclasses import asdict
    from types import SimpleNamespace

    from rich.console import Console

    from cpdrun.report import ReportOptions, write_report

    def run(
        *sweeps: Sweep, formats: Sequence[str] = ("md", "csv"), export_to: Sequence[str] = (), **options: Any
    ) -> SimpleNamespace:
        out = io.StringIO()
        made = write_report(
            [sweep.dir for sweep in sweeps],
            ReportOptions(**options),
            formats=formats,
            export_to=export_to,
            console=Console(file=out, width=200),
        )
        folder = made.files[0].parent
        answers = [line for line in made.sentences if not line.startswith("Margin: ")]
        crossover = made.content.crossover
        return SimpleNamespace(
            **vars(made.content)
            | vars(made)
            | {"verdicts": [asdict(each) for each in made.content.verdicts]}
            | {"sentences": made.sentences, "crossover": None if crossover is None else crossover.numbers},
            folder=folder,
            printed=out.getvalue(),
            answers=answers,
            document=made.document,
        )

    return run
