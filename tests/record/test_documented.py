"""docs/record.md documents exactly the keys and files of the record, because other tools follow it."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

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
    read_manifest,
    write_run,
)
from cpdrun.record.measure import KNOWN
from cpdrun.search.question import ask
from cpdrun.study.grouping import _FIGURES
from cpdrun.sweep import write_manifest

PAGE = (Path(__file__).parents[2] / "docs" / "record.md").read_text(encoding="utf-8")
ENTRIES = {
    "`done.json`": Result,
    "`measures`": Measure,
    "`best`": Best,
    "`metrics.jsonl`": EpochRow,
    "`status.json`": Progress,
    "`where.json`": Where,
    "`exit.json`": Outcome,
    "`lost.jsonl`": Lost,
}


def rows(heading):
    """{key: whether it is needed} of the table below that heading, up to the next one."""
    part = re.split(r"\n##+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1)[0]
    cells = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
    return {key: row[1].strip() == "yes" for row in cells for key in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("heading", ENTRIES)
def test_every_field_of_the_record_is_documented_with_its_need(heading):
    entry = ENTRIES[heading]
    names = getattr(entry, "KEYS", {})
    wanted = {
        names.get(f.name, f.name): f.default is MISSING and f.default_factory is MISSING
        for f in fields(entry)
    }
    if entry is EpochRow:
        del wanted["metrics"]  # stand in the line under their own names
    if entry is Measure:
        wanted["shown"] = True  # in a file
    assert rows(heading) == wanted


def test_the_other_files_are_documented_too():
    assert rows("`format.json`").keys() == format_facts("e4m3").keys()
    figures = [column.split(":")[1] for column in _FIGURES.values()]
    assert not [name for name in (*figures, *KNOWN) if f"`{name}`" not in PAGE]
    assert f"This is record version {VERSION}." in PAGE
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)[-1] == str(VERSION)


def test_the_question_of_a_search_is_documented(tmp_path):
    question = ask(
        [f"results_dir={tmp_path}", "name=ours", "format=fp32,e4m3", "aps=false", "search.most_seeds=3"]
    )
    cell = next(iter(question.cells.values()))
    write_manifest(question.as_plan([cell[0]]), question.asked)
    ours = read_manifest(question.directory)
    write_run(tmp_path / "theirs", format="fp32", seed=0, metrics={"test_loss": 1})
    assert {*ours, *read_manifest(SweepDir(tmp_path / "theirs"))} == rows("`sweep.yaml`").keys()
    further = ("ledger", "tune", "chose", "axis", "baseline_values", "start", "expected_runs")
    assert {*ours["search"], *further} == rows("`search`").keys()


def test_every_file_is_named():
    folders = [RunDir(Path("r")), SweepDir(Path("s")), Attempt(Path("1"))]
    paths = [
        value for one in folders for name in dir(one) if isinstance(value := getattr(one, name, None), Path)
    ]
    names = {path.name for path in paths if not path.name.startswith(".")} - {"r", "s", "1", "runs"}
    assert len(names) > 12 and not [name for name in names if name not in PAGE]


def test_settings_that_do_not_distinguish_runs_are_named():
    from cpdrun.config.identity import NOT_IDENTITY

    part = PAGE.split("Every other key is a setting")[1].split("\n## ")[0]
    assert not [key for key in NOT_IDENTITY if f"`{key}`" not in part]
