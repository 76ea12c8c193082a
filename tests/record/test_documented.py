"""The docstrings in docs/reference/record.md describe exactly the keys and files of the record.

Other tools that write records rely on them.
"""

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from cpdrun.config import identity, manifest
from cpdrun.config.identity import format_facts
from cpdrun.record import (
    VERSION,
    Attempt,
    Best,
    EpochRow,
    Lost,
    Measure,
    Outcome,
    Progress,
    Result,
    RunDir,
    SweepDir,
    Where,
    layout,
    read_manifest,
    write_run,
)
from cpdrun.record.measure import KNOWN
from cpdrun.search.question import ask
from cpdrun.study.grouping import _FIGURES
from cpdrun.sweep import write_manifest

DOCS = Path(__file__).parents[2] / "docs"
PAGE, REFERENCE = ((DOCS / name).read_text(encoding="utf-8") for name in ("record.md", "reference/record.md"))
ENTRIES = [Result, Measure, Best, EpochRow, Progress, Where, Outcome, Lost]


def keys(documented, title="Keys"):
    """Return {key: whether it is required} of a section in a docstring."""
    section = inspect.getdoc(documented).split(f"{title}:\n", 1)[1].split("\n\n", 1)[0]
    return {
        key: bool(required)
        for key, required in re.findall(r"^ {4}(\w+)( \(required\))?: ", section, re.MULTILINE)
    }


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_field_of_the_record_is_documented_with_its_need(entry):
    names = getattr(entry, "KEYS", {})
    wanted = {
        names.get(f.name, f.name): f.default is MISSING and f.default_factory is MISSING
        for f in fields(entry)
    }
    if entry is EpochRow:
        del wanted["metrics"]  # stand in the line under their own names
    if entry is Measure:
        wanted["shown"] = True  # in a file
    assert keys(entry) == wanted
    assert f"cpdrun.record.{entry.__name__}()" in REFERENCE


def test_the_other_files_are_documented_too():
    returns = inspect.getdoc(format_facts).split("Returns:", 1)[1]
    assert not [key for key in format_facts("e4m3") if f"`{key}`" not in returns]
    figures = [column.split(":")[1] for column in _FIGURES.values()]
    assert not [
        name for name in figures if name not in keys(Result) and f"`{name}`" not in inspect.getdoc(Result)
    ]
    assert not [name for name in KNOWN if f"`{name}`" not in REFERENCE]
    assert f"This is record version {VERSION}." in PAGE and f"record version {VERSION}." in REFERENCE


def test_the_question_of_a_search_is_documented(tmp_path):
    question = ask(
        [f"results_dir={tmp_path}", "name=ours", "format=fp32,e4m3", "aps=false", "search.most_seeds=3"]
    )
    cell = next(iter(question.cells.values()))
    write_manifest(question.as_plan([cell[0]]), question.asked)
    ours = read_manifest(question.directory)
    write_run(tmp_path / "theirs", format="fp32", seed=0, metrics={"test_loss": 1})
    assert {*ours, *read_manifest(SweepDir(tmp_path / "theirs"))} == keys(manifest).keys()
    further = ("ledger", "tune", "chose", "axis", "baseline_values", "start", "expected_runs")
    assert {*ours["search"], *further} == keys(manifest, "Keys of `search`").keys()


def test_every_file_is_named():
    folders = [RunDir(Path("r")), SweepDir(Path("s")), Attempt(Path("1"))]
    paths = [
        value for one in folders for name in dir(one) if isinstance(value := getattr(one, name, None), Path)
    ]
    names = {path.name for path in paths if not path.name.startswith(".")} - {"r", "s", "1", "runs"}
    assert len(names) > 12 and not [name for name in names if name not in inspect.getdoc(layout)]


def test_settings_that_do_not_distinguish_runs_are_named():
    part = inspect.getdoc(identity).split("Every other key is a setting")[1]
    assert not [key for key in identity.NOT_IDENTITY if f"`{key}`" not in part]
