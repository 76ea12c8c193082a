"""The documents that commands print with --json are valid against their schemas."""

import json
from pathlib import Path

import jsonschema
import pytest

import cpdrun
from cpdrun.cli import COMMANDS, main
from cpdrun.commands import document_types, schema

SMALL = ("exp=digits_bits", "format=fp32,e4m3", "aps=false", "epochs=1", "model.width=4", "device=cpu")
DOCS = Path(__file__).parents[2] / "docs" / "json.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep of two runs."""
    folder = tmp_path_factory.mktemp("results")
    cpdrun.sweep(*SMALL, seed=0, jobs=2, results_dir=folder, quiet=True)
    return folder


def document_of(capsys, *typed):
    code = main([*typed, "--json"])
    document = json.loads(capsys.readouterr().out)
    kind = document["schema"].partition(".")[2].partition("/")[0]
    jsonschema.validate(document, schema(kind), cls=jsonschema.Draft202012Validator)
    assert document["exit_code"] == code
    return document


def test_each_kind_has_a_valid_schema_and_a_row_in_the_docs():
    text = DOCS.read_text(encoding="utf-8")
    assert {name for name in COMMANDS if "--" not in name} <= set(document_types())
    for kind in document_types():
        jsonschema.Draft202012Validator.check_schema(schema(kind))
        assert f"`{schema(kind)['properties']['schema']['const']}`" in text


def test_descriptions_of_keys_come_from_docstrings():
    found = schema("calibrate")
    assert found["properties"]["forecast"]["description"] == "The predicted step times."
    row = found["$defs"]["ForecastRow"]
    assert row["properties"]["total_s"] == {
        "type": ["number", "null"],
        "description": "The time of the whole step.",
    }
    assert "total_s" in row["required"] and "for" in schema("formats")["$defs"]["FormatKind"]["required"]
    session_keys = {"decision", "idea", "number", "log_evidence", "log_evidence_required"}
    candidate = schema("judge")["$defs"]["CandidateDocument"]
    assert set(candidate["properties"]) - set(candidate["required"]) == session_keys


def test_commands_on_a_sweep(folder, capsys):
    sweep = str(folder / "digits_bits")
    again = document_of(capsys, "sweep", *SMALL, "seed=0", f"results_dir={folder}")
    assert again["summary"] is None and [run["status"] for run in again["runs"]] == ["finished"] * 2
    planned = document_of(capsys, "sweep", *SMALL, "seed=0,1", f"results_dir={folder}", "--dry-run")
    assert (planned["done"], planned["to_run"]) == (2, 2)
    assert document_of(capsys, "search", *SMALL, f"results_dir={folder}", "--dry-run")["runs"] == 2
    assert document_of(capsys, "search", "--plan", sweep, "--budget", "3")["fit"] == 3
    assert document_of(capsys, "predict", *SMALL, f"results_dir={folder}", "--dry-run")["dry_run"]
    assert document_of(capsys, "report", sweep, "--format", "csv")["table"]
    (standing,) = document_of(capsys, "status", sweep)["sweeps"]
    assert standing["counts"]["done"] == 2
    run = str(next((folder / "digits_bits" / "runs").iterdir()))
    assert document_of(capsys, "logs", run)["runs"][0]["lines"]
    assert document_of(capsys, "report", run)["sentences"]
    assert document_of(capsys, "cancel", sweep)["sweeps"][0]["asked"] == 0
    assert document_of(capsys, "sweep", "--join", sweep)["sweeps"][0]["summary"] is None


def test_a_search_that_trains(capsys, tmp_path):
    """The margin is so wide that three pairs settle it."""
    words = [
        "exp=digits_search",
        "format=fp32,e4m3",
        "aps=false",
        "world_size=2",
        "batch_size=32",
        "epochs=2",
    ]
    words += ["model.width=4", "device=cpu", "search.tolerance=20", f"results_dir={tmp_path}"]
    found = document_of(capsys, "search", *words)
    (chain,) = found["chains"]
    assert chain["smallest"] == "e4m3 without APS" and chain["candidates"][0]["verdict"] == "certified"
    assert found["runs"] == sum(summary["done"] for summary in found["summaries"]) >= 6


def test_a_calibration(capsys, tmp_path):
    words = [*SMALL, f"results_dir={tmp_path}", "--repeats", "1", "--network", "1gbit"]
    found = document_of(capsys, "doctor", "--calibrate", *words)
    assert Path(found["calibration"]).exists() and {row["format"] for row in found["forecast"]} >= {"e4m3"}
    assert all(row["total_s"] > 0 for row in found["forecast"])


def test_commands_that_need_no_sweep(capsys, tmp_path):
    assert document_of(capsys, "init", str(tmp_path / "mine"))["files"]
    assert document_of(capsys, "init", "--schema")["experiment"]
    assert document_of(capsys, "init", "--schema", "search")["document"] == schema("search")
    assert document_of(capsys, "report", "--plots")["plots"]
    assert document_of(capsys, "formats")["formats"]
    assert document_of(capsys, "formats", "e2m1fn")["values"]
    assert document_of(capsys, "formats", "--vectors", "e2m1fn", "--count", "1")["vectors"]
    assert document_of(capsys, "doctor", "--results-dir", str(tmp_path))["findings"]
    words = ["--allocate", "exp=digits_screen_small", f"results_dir={tmp_path}", "--dry-run"]
    assert document_of(capsys, "search", *words)["factors"]


def test_errors_are_documents(capsys):
    for words in ("sweep exp=digits_bits frmat=e4m3", "status nothing", "logs -f x", "status --watch"):
        assert document_of(capsys, *words.split())["schema"] == "cpdrun.error/1"
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--jobs", "0", "--json"])
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.err.endswith("For the options: cpdrun sweep -h\n")
    assert json.loads(said.out)["lines"] == ["argument --jobs: must be a whole number, at least 1, not '0'"]
