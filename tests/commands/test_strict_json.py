"""Documents for programs are strict JSON, and nothing else goes to stdout.

Sweeps of every state are tested: killed, empty, diverged, without numbers, unobserved, and of one worker.
"""

import json
import re
from pathlib import Path

import pytest

import cpdrun
from cpdrun.cli import main
from cpdrun.commands import document_types
from cpdrun.record import SweepDir, append_json_line, json_text, write_text
from cpdrun.shell.document import schema_name

COSTS = "bytes,kept,bitops,area"
NOTHING = {"test_accuracy": None, "test_loss": None}
STATES = ("killed", "diverged", "no number", "one worker", "not finite")
SOURCES = Path(cpdrun.__file__).parent


def _run(sweep: SweepDir, name: str, fmt: str, *, workers: int = 4, **done) -> None:
    """Write a run with these keys in done.json, or without any, a run that was killed in its second epoch."""
    run = sweep.run(name)
    run.path.mkdir(parents=True)
    config = {"name": sweep.name, "format": fmt, "aps": False, "world_size": workers, "seed": 0, "epochs": 3}
    config |= {"batch_size": 8, "nproc": 1, "device": "cpu", "launcher": {"kind": "local", "jobs": 1}}
    config |= {"model": {"_target_": "cpdrun.models.convnet.ConvNet", "width": 4}}
    config |= {"scaling": {"_target_": "cpdrun.comm.sums.scaling.aps.APS"}}
    write_text(run.config, json.dumps(config))
    if done:
        metrics = {"test_accuracy": 0.9, "test_loss": 0.3}
        made = {"status": "finished", "metrics": metrics, "test_samples": 360}
        write_text(run.done, json.dumps(made | done))  # with NaN, as other programs may write it
        return
    run.new_attempt()
    append_json_line(run.metrics, {"epoch": 1, "test_accuracy": 0.5, "layers": {}})
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write('{"epoch": 2, "test_acc')


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """Write a sweep of each state: a baseline in fp32 and a run in e3m0."""
    folder = tmp_path_factory.mktemp("states")
    worse = {"metrics": {"test_accuracy": 0.2, "test_loss": 2.0}}
    fine = {"wall_seconds": 1.0}
    for name in STATES:
        sweep = SweepDir(folder / name)
        workers = 1 if name == "one worker" else 4
        baseline = {
            "diverged": {"status": "diverged", "metrics": NOTHING},
            "no number": {"metrics": NOTHING},
            "not finite": {"metrics": {"test_accuracy": float("nan"), "test_loss": float("inf")}},
        }.get(name, fine)
        _run(sweep, "a", "fp32", workers=workers, **baseline)
        _run(sweep, "b", "e3m0", workers=workers, **({} if name == "killed" else worse))
    empty = SweepDir(folder / "empty")
    empty.runs_folder.mkdir(parents=True)
    write_text(empty.manifest, "runs: []\n")
    return folder


def _strict(text: str):
    def refuse(constant: str):
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("state", [*STATES, "empty"])
@pytest.mark.parametrize(
    "typed",
    [
        ("report", "SWEEP", "--cost", COSTS),
        ("status", "SWEEP"),
        ("report", "RUN"),
        ("predict", "RUN", "format=e3m0"),
    ],
    ids=" ".join,
)
def test_a_command_prints_strict_json_or_one_line_that_says_why_not(sweeps, capsys, state, typed):
    sweep = sweeps / state
    places = {"SWEEP": str(sweep), "RUN": str(sweep / "runs" / "b")}
    code = main([*(places.get(word, word) for word in typed), "--json"])
    said = capsys.readouterr()
    document = _strict(said.out)
    assert document["exit_code"] == code
    if code == 0:
        assert document["schema"] == _schema_name("explain" if typed == ("report", "RUN") else typed[0])
    else:
        (line,) = document["lines"]
        assert document["schema"] == _schema_name("error") and document["command"] == typed[0]
        assert said.err == f"error: {line}\n"


def _schema_name(kind):
    return schema_name(kind, document_types()[kind])


def test_values_that_are_not_finite_become_null():
    found = _strict(json_text({"a": [float("nan"), 1.5], "b": {"c": float("-inf")}}))
    assert found == {"a": [None, 1.5], "b": {"c": None}}


def test_all_commands_write_json_by_the_same_function():
    """search, screen and dry runs, which train, print by the same function."""
    others = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if re.search(r"(print|return) ?\(?json\.dumps\(", path.read_text(encoding="utf-8"))
        and "indent=" in path.read_text(encoding="utf-8")
    }
    assert others <= {"record/files.py"}
