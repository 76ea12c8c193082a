import json
import os
import subprocess
import sys
import time

import pytest

from cpdrun.errors import CannotWriteError
from cpdrun.launch import Job
from cpdrun.launch.session import write_configs
from cpdrun.record import (
    Ending,
    EpochRow,
    NotFoundError,
    Outcome,
    Progress,
    Result,
    RunDir,
    State,
    Where,
    append_json_line,
    check_inside,
    claim,
    find_sweeps,
    is_claimed,
    read_json,
    read_json_lines,
    release,
    state_of,
    write_json,
    write_text,
)
from cpdrun.record.files import STALE_S
from cpdrun.sweep import plan


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


def test_json_is_strict_and_complete(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"loss": float("nan"), "list": [float("inf"), 1.5]})
    assert json.loads(path.read_text()) == read_json(path) == {"loss": None, "list": [None, 1.5]}
    (tmp_path / "ordinary").touch()  # with the permissions of the umask
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    path.write_text('{"half": ')
    assert read_json(path) is None
    assert read_json(tmp_path / "absent") is None


def test_a_failed_write_leaves_only_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, 1)
    with pytest.raises(TypeError):
        write_json(path, object())
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert read_json(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_incomplete_and_damaged_lines_are_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert list(read_json_lines(path)) == []
    append_json_line(path, {"epoch": 1})
    with path.open("a") as file:
        file.write('{"epoch": 2, "tr')  # the writer was killed
    append_json_line(path, {"epoch": 3})
    path.write_bytes(path.read_bytes() + b"\xff\n5\n")
    assert [row["epoch"] for row in read_json_lines(path)] == [1, 3]


def test_a_claim_excludes_others_until_its_last_holder_ends(run):
    fd = claim(run)
    assert is_claimed(run)
    claim_in_another = (
        "import sys, pathlib, cpdrun.record as r; print(r.claim(r.RunDir(pathlib.Path(sys.argv[1]))))"
    )
    other = [sys.executable, "-c", claim_in_another, str(run.path)]
    assert subprocess.check_output(other, text=True) == "None\n"
    child = subprocess.Popen(["sleep", "60"], pass_fds=[fd])
    os.close(fd)
    assert is_claimed(run)
    child.kill()
    child.wait()
    assert not is_claimed(run)


def test_state_is_derived_from_files(run):
    assert state_of(run) is State.PENDING
    fd = claim(run)
    assert state_of(run) is State.RUNNING
    os.close(fd)
    attempt = run.new_attempt()
    assert state_of(run) is State.PREEMPTED  # killed before it could say how it ended
    for outcome, state in [
        ("preempted", State.PREEMPTED),
        ("killed", State.FAILED),
        ("failed", State.FAILED),
        ("out of memory", State.FAILED),
        ("a word of another version", State.FAILED),
        ("finished", State.PENDING),
    ]:
        write_json(attempt.exit, {"outcome": outcome})
        assert state_of(run) is state
    for garbage in ("5", "[1]", "null", "{", "\xff"):
        attempt.exit.write_text(garbage, encoding="latin-1")
        assert state_of(run) is State.PREEMPTED
    for garbage in ("garbage", "{}", "[]", '{"status": 1}', '{"status": "finished", "metrics": null}'):
        run.done.write_text(garbage)
        assert state_of(run) is State.DONE and run.result() is None
    run.done.write_text('{"status": "finished"}')
    assert run.result() == Result(Ending.FINISHED)


def test_attempts_are_numbered_in_order(run):
    for number in range(1, 12):
        assert run.new_attempt().number == number
    assert [a.number for a in run.attempts()] == list(range(1, 12))
    assert run.last_attempt().rank_log(3).name == "rank3.log"


def test_sweeps_are_found_by_name_folder_or_date(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match="no sweep in results/ yet"):
        find_sweeps([])
    for age, name in enumerate(["old", "new"]):
        (tmp_path / "results" / name / "runs").mkdir(parents=True)
        os.utime(tmp_path / "results" / name / "runs", (age, age))
    (tmp_path / "results" / "reference").mkdir()
    assert [s.name for s in find_sweeps([])] == ["new"]
    assert [s.name for s in find_sweeps(["old", "results/new"])] == ["old", "new"]
    assert find_sweeps(["results_dir=results", "old"])[0].path.name == "old"
    with pytest.raises(NotFoundError, match=r"no sweep 'odl'.*new, old"):
        find_sweeps(["odl"])


def test_damaged_and_unknown_fields_take_their_defaults(run):
    write_json(
        run.done,
        {
            "status": "diverged",
            "metrics": {"train_loss": None, "test_accuracy": "much"},
            "num_classes": True,
            "train_seconds": "long",
            "wire": [],
            "later": 1,
        },
    )
    assert run.result() == Result(Ending.DIVERGED, {"train_loss": None, "test_accuracy": None})
    for status in ("preempted", "unheard-of", 1, None):
        write_json(run.done, {"status": status})
        assert run.result() is None
    write_json(run.status, {"epoch": 3, "epochs": 2.5, "updated": 7})
    assert run.progress() == Progress(epoch=3, updated=7)
    attempt = run.new_attempt()
    write_json(attempt.where, {"host": 1, "slurm_job": "7_0", "from_epoch": None})
    assert attempt.whereabouts() == Where(scheduled="7_0") and attempt.outcome() is None
    write_json(attempt.exit, {"outcome": "killed", "rank": "first"})
    assert attempt.outcome() == Outcome(Ending.KILLED)
    run.metrics.write_text('{"epoch": 1, "train_loss": null, "x": "y", "layers": 3}\n{"step": 1}\n[]\n')
    assert list(run.rows()) == [EpochRow(1, metrics={"train_loss": None})]
    odd = f'"metrics": {{"a": NaN, "b": 1e999}}, "wall_seconds": -Infinity, "train_seconds": {10**400}'
    run.done.write_text(f'{{"status": "finished", {odd}}}')
    assert run.result() == Result(Ending.FINISHED, {"a": None, "b": None})


def test_entries_are_written_with_the_same_fields_in_the_same_order():
    row = EpochRow(2, 20, {"train_loss": 0.5, "test_accuracy": 0.75}, 0, {"conv": {"max": 1}}, 1.5)
    assert EpochRow.read(row.as_json()) == row
    for entry, fields in (
        (row, "epoch step train_loss test_accuracy nonfinite_gradients layers train_seconds"),
        (EpochRow(0), "epoch step train_seconds"),
        (
            Result(Ending.FINISHED, train_seconds=0.5, wall_seconds=1.0),
            "status metrics measures judged_by best test_samples num_classes train_seconds memory wire topology "
            "weights_sha256 wall_seconds record",
        ),
        (
            Outcome(Ending.FAILED, attempt=1, started=1.0, ended=2.0),
            "outcome exit_code rank reason attempt started ended",
        ),
        (Where(), "host pid slurm_job started from_epoch"),
        (Progress(1, 2, 0.5, 3, 4.0), "epoch step test_accuracy epochs updated"),
    ):
        assert list(entry.as_json()) == fields.split()


def test_temporary_files_of_killed_writers_are_removed_at_the_next_start(run):
    for name, age_s in (("old", 2 * STALE_S), ("young", 0)):
        path = run.path / f".status.json.{name}.partial"
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
    release(run, claim(run))
    assert {path.name for path in run.path.iterdir()} == {".lock", ".status.json.young.partial"}


@pytest.mark.parametrize("name", ["josé", "日本", "(1) #2, a=b", "it's", 'a "b"'])
def test_any_characters_may_be_in_results_dir(tmp_path, name):
    folder = tmp_path / name
    for typed in (str(folder), f"'{folder}'"):
        made = plan(["exp=digits_bits", "seed=0", "format=fp32", f"results_dir={typed}"])
        assert made.directory.path.parent == folder
        made.directory.runs_folder.mkdir(parents=True, exist_ok=True)
        assert find_sweeps([f"results_dir={typed}"]) == [made.directory]


def test_a_name_that_no_file_system_allows_is_not_found(tmp_path):
    with pytest.raises(NotFoundError):
        find_sweeps(["x" * 300, f"results_dir={tmp_path}"])


def test_a_run_is_not_trained_outside_of_its_sweep(tmp_path):
    made = plan(["exp=digits_bits", "seed=0", "format=fp32", f"results_dir={tmp_path / 'results'}"])
    run = made.directory.run(made.runs[0].name)
    run.path.parent.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    run.path.symlink_to(tmp_path / "outside")
    with pytest.raises(CannotWriteError, match="link"):
        write_configs([Job(run, made.runs[0].config, made.runs[0].overrides)])
    assert not any((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("place", ["lock", "preempt"])
def test_nothing_is_created_through_a_link(run, tmp_path, place):
    outside = tmp_path / "outside"
    getattr(run, place).symlink_to(outside)
    with pytest.raises(OSError, match=r"link|regular"):
        claim(run) if place == "lock" else check_inside(run.path, run.preempt)
    assert not outside.exists() and not is_claimed(run)
