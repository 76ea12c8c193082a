"""Test scripts/references.py on a tiny experiment in its own repository: interruption, repetition, and errors."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpdrun.cli import main
from cpdrun.record import SweepDir

PATIENCE_S = 280  # for a script that takes seconds on an idle machine
SCRIPT = Path(__file__).parents[1] / "scripts" / "references.py"
TINY = """
defaults:
  - override /model: convnet
  - override /data: digits
model: {width: 2}
epochs: 1
sweep:
  format: [fp32, e4m3]
  seed: [0]
"""
DATA = """
tiny:
  report: [--format, "md,csv"]
  keep: {table.md: table.md, table.csv: numbers.csv}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "exp").mkdir(parents=True)
    (tmp_path / "conf" / "exp" / "tiny.yaml").write_text(TINY)
    (tmp_path / "kept.yaml").write_text(DATA)
    (tmp_path / ".gitignore").write_text("results/*\n!results/reference/\n")
    (tmp_path / "results" / "reference" / "tiny").mkdir(parents=True)
    (tmp_path / "results" / "reference" / "tiny" / "README.md").write_text("by hand\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    user = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    return subprocess.run(
        ["git", *user, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "as it is")
    return git(folder, "rev-parse", "HEAD").strip()


def start(folder: Path, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, SCRIPT, "--data", "kept.yaml", "--config-dir", "conf", "--jobs", "1", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(folder: Path) -> list[Path]:
    return sorted(folder.glob("results/references-*/tiny/runs/*/done.json"))


@pytest.mark.timeout(4 * PATIENCE_S)
def test_killed_script_continues_and_preserves_handwritten_files(repository):
    script = start(repository, "tiny")
    until = time.monotonic() + PATIENCE_S
    while not finished(repository):
        assert time.monotonic() < until and script.poll() is None
        time.sleep(0.02)
    script.send_signal(signal.SIGKILL)
    script.communicate()
    kept = repository / "results" / "reference" / "tiny"
    assert sorted(path.name for path in kept.iterdir()) == ["README.md"]
    times = {path: path.stat().st_mtime_ns for path in finished(repository)}

    script = start(repository, "tiny")
    out, err = script.communicate(timeout=PATIENCE_S)
    assert script.returncode == 0, out + err
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in times.items()), "finished runs stay"
    assert len(finished(repository)) == 2
    assert (kept / "README.md").read_text() == "by hand\n"
    made_by = (kept / "made_by.txt").read_text()
    head = git(repository, "rev-parse", "HEAD").strip()
    assert f"commit     {head}\n" in made_by
    assert "command    cpdrun sweep exp=tiny --config-dir conf\n" in made_by
    assert "files      numbers.csv table.md values.csv made_by.txt\n" in made_by
    with (kept / "values.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["format"], row["seed"]) for row in rows] == [("e4m3", "0"), ("fp32", "0")]
    assert {row["commit"] for row in rows} == {head}
    assert len({row["weights_sha256"] for row in rows}) == 2
    table = (kept / "table.md").read_text()
    assert "cpdrun search exp=tiny" in table and "dir=" not in table  # the folder of this machine

    again = start(repository, "tiny")  # nothing to train: it may be typed beside its own uncommitted output
    assert again.wait(PATIENCE_S) == 0

    later = commit(repository)  # of the report alone, say
    script = start(repository, "--runs-of", head, "tiny")
    out, err = script.communicate(timeout=PATIENCE_S)
    assert script.returncode == 0, out + err
    made_by = (kept / "made_by.txt").read_text()
    assert f"commit     {head}\nreported   {later}\n" in made_by
    assert len(finished(repository)) == 2, "existing runs are reported, not trained again"


def test_uncommitted_changes_and_unknown_names_are_errors(repository):
    (repository / "conf" / "exp" / "tiny.yaml").write_text(TINY + "# changed\n")
    for words, said in (
        (("tiny",), "conf/exp/tiny.yaml"),
        (("nothing",), "no reference 'nothing'; there are: tiny"),
        (("--runs-of", "v9", "tiny"), "--runs-of v9: no commit of this repository"),
    ):
        script = start(repository, *words)
        _, err = script.communicate(timeout=PATIENCE_S)
        assert script.returncode == 2 and said in err


def test_each_reference_has_its_experiments(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from references import DATA, read_parts

    parts = [part for of_name in read_parts(DATA).values() for part in of_name]
    experiments = {path.stem for path in (SCRIPT.parents[1] / "conf" / "exp").glob("*.yaml")}
    assert {word[4:] for part in parts for word in part.words if word.startswith("exp=")} <= experiments


def test_a_run_is_compared_with_the_stored_run_of_the_same_settings(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import check_references
    from research.claims.values import read_values, write_values

    typed = ["exp=digits_bits", "epochs=1", "model.width=2", "aps=false", "seed=0"]
    axes = ["format=fp32", "sync.order=rank,tree"]  # different settings with equal weights
    assert main(["sweep", *typed, *axes, f"results_dir={tmp_path}", "name=kept"]) == 0
    write_values([SweepDir(tmp_path / "kept")], tmp_path / "kept" / "values.csv")
    reference = {"sweep": [*typed, *axes], "report": [], "keep": []}
    (tmp_path / "references.yaml").write_text(json.dumps({"kept": reference}))
    monkeypatch.setattr(check_references, "REFERENCES", tmp_path)
    monkeypatch.setattr(check_references, "DATA", tmp_path / "references.yaml")
    monkeypatch.setattr(sys, "argv", ["check_references.py", "kept"])
    capsys.readouterr()
    assert check_references.main() == 0
    assert "equal to the last bit" in capsys.readouterr().out.splitlines()[-1]

    stored = read_values(tmp_path / "kept")
    run = check_references.train([*typed, "format=fp32", "sync.order=tree"])
    tree = stored.rows["sync.order"] == "tree"
    stored.rows.loc[tree, ["weights_sha256", "metric:test_loss"]] = ["0" * 64, 1.25]
    found = check_references.compare(run, stored)
    assert found.startswith("different weights: ") and "stored 1.25" in found
    assert check_references.compare({**run, "seed": 9}, stored) == "no stored run has these settings"


def test_results_are_recorded_with_their_command_and_commit(repository, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.chdir(repository)
    import made_by

    head = git(repository, "rev-parse", "HEAD").strip()
    assert made_by.clean_commit() == head
    monkeypatch.setattr(sys, "argv", [str(repository / "scripts" / "some.py"), "of", "two words"])
    made_by.write_made_by(repository / "some.made_by.txt", head, time.monotonic(), ["some.md"])
    lines = (repository / "some.made_by.txt").read_text().splitlines()
    assert lines[:2] == ["command    python scripts/some.py of 'two words'", f"commit     {head}"]
    assert lines[-1] == "files      some.md some.made_by.txt" and lines[5].startswith("wall time  0 s")
    with pytest.raises(SystemExit, match=r"differs from commit .*\n\?\? some.made_by.txt"):
        made_by.clean_commit()


def test_scripts_for_references_need_a_clean_working_tree(repository):
    (repository / "beside").write_text("")
    done = subprocess.run(
        [sys.executable, SCRIPT.parent / "research" / "prediction" / "explain_fixes.py"],
        cwd=repository,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "working tree differs from commit" in done.stderr
    assert not list(repository.glob("results/*mends*")) and not list(repository.glob("**/made_by.txt"))
