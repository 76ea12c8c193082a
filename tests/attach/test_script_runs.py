"""Runs of a script that ends in many ways: each gets its line, and none of them is lost or waited for."""

import shutil
import sys
from pathlib import Path

import pytest
from forked import attached, run_script
from test_examples import run_dir

from cpdrun.cli import main
from cpdrun.record import Ending, SweepDir, read_json

SCRIPT = Path(__file__).with_name("odd_script.py")
LOSS = ["script.metrics.val_loss=val loss ([0-9.]+)", "script.metrics.epoch=epoch ([0-9]+)"]
ENDS = {
    "fine": (Ending.FINISHED, ""),
    "leaves": (Ending.FINISHED, ""),
    "orphan": (Ending.FINISHED, ""),
    "nan": (Ending.DIVERGED, ""),
    "raises": (Ending.FAILED, "odd_script.py ended with exit code 1: ValueError: boom"),
    "overflows": (Ending.FAILED, "ValueError: the output is NaN; weights were not finite (1 of 2)"),
    "code": (Ending.FAILED, "odd_script.py ended with exit code 3: epoch 1: val loss "),
    "words": (Ending.FAILED, "odd_script.py ended with exit code 1: no more data"),
    "again": (Ending.FAILED, "odd_script.py ended with exit code 75"),
    "silent": (Ending.FAILED, "never logged val_loss: no line of its output matches 'val loss ([0-9.]+)'"),
    "chatters": (Ending.FINISHED, ""),
    "killed": (Ending.KILLED, "rank 0 was killed by SIGKILL"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The run of each way to end, out of one sweep from a folder that holds nothing but the script."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copy(SCRIPT, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["sweep", "script=odd_script.py", f"script.args.do={','.join(ENDS)}", *LOSS]
        assert main(words) == 1
    sweep = SweepDir(folder / "results" / "odd_script")
    by_way = {}
    for run in sweep.runs():
        (way,) = (way for way in ENDS if f"script.args.do={way}" in run.overrides.read_text().split())
        by_way[way] = run
    return by_way


@pytest.mark.parametrize("way", ENDS)
def test_each_ending_is_classified(runs, way):
    ending, reason = ENDS[way]
    outcome = runs[way].last_attempt().outcome()
    assert outcome.status is ending and reason in outcome.reason
    assert runs[way].done.exists() == ending.has_result


def test_the_record_of_a_finished_script(runs):
    run = runs["fine"]
    result = run.result()
    assert result.judged_by == "val_loss" and 0 < result.metrics["val_loss"] < 1
    assert next(run.rows()).epoch == 1
    assert "val loss" in run.last_attempt().rank_log(0).read_text()
    env = read_json(run.env)
    assert "attached" in env and env["cpu"]


def test_a_huge_log_is_truncated(runs):
    log, result = runs["chatters"].last_attempt().rank_log(0), runs["chatters"].result()
    assert result.metrics["val_loss"] == 0.25
    assert log.stat().st_size < 16 << 20 and "bytes are left out here" in log.read_text()


def test_random_numbers_of_a_script_are_seeded_with_the_seed_of_the_run(runs):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    expected = torch.rand(1).item()
    assert runs["fine"].result().metrics["val_loss"] == pytest.approx(expected, abs=1e-6)


def test_a_traceback_begins_in_the_script(runs):
    text = runs["raises"].last_attempt().rank_log(0).read_text()
    assert "odd_script.py" in text and "runpy" not in text


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    """The run of one way to end, and with which exit code cpdrun ends."""

    def run(way, *words):
        monkeypatch.chdir(tmp_path)
        shutil.copy(SCRIPT, tmp_path)
        code = main(["sweep", "script=odd_script.py", f"script.args.do={way}", *words])
        (run,) = SweepDir(tmp_path / "results" / "odd_script").runs()
        return run, code

    return run


def test_a_hanging_script_is_ended(run_of):
    run, code = run_of("hangs", *LOSS, "patience_s=2")
    outcome = run.last_attempt().outcome()
    assert code == 1 and outcome.status is Ending.FAILED
    assert (
        outcome.reason == "hung or stopped: no output, no run.log() and no optimizer step in 2 s (patience_s)"
    )


def test_launch_with_torchrun_and_event_files(run_of):
    """torchrun itself, of two ranks, of which one writes for TensorBoard."""
    pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")
    torchrun = f"{sys.executable} -m torch.distributed.run --nproc-per-node {{nproc}} --master-port {{port}}"
    where = (
        "script_args=--events {run_dir}/tb",
        "script.tensorboard={run_dir}/tb",
        "script.metric=loss/val",
        "script.direction.loss/val=min",
    )
    run, code = run_of("events", "nproc=2", f"script.launch_with={torchrun}", *where)
    assert code == 0, run.last_attempt().outcome()
    assert [(row.step, row.metrics) for row in run.logged()] == [
        (10, {"loss/val": pytest.approx(1 / 10)}),
        (20, {"loss/val": pytest.approx(1 / 20)}),
    ]
    assert run.result().metrics == {"loss/val": pytest.approx(1 / 20)}


def test_a_launcher_that_starts_too_few_ranks_is_an_error(tmp_path):
    run = run_dir(SCRIPT, tmp_path, 2, "e3m0")
    said = run_script(1, SCRIPT, [], tmp_path, attached, ends_with=2, CPDRUN_RUN_DIR=str(run.path))
    assert said.startswith(
        "error: script.launch_with started 1 rank, but nproc=2. Use {nproc} in script.launch_with"
    )


SAVES_AND_FAILS = """
import sys, torch, cpdrun
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
saved = cpdrun.attach(model, optimizer).checkpoint_dir / "last"
if not saved.exists():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    saved.touch()
    sys.exit("full disk")
print("val loss 1.5")
"""


def test_a_retried_script_without_steps_left_is_not_an_error(tmp_path, monkeypatch):
    (tmp_path / "again.py").write_text(SAVES_AND_FAILS)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "script=again.py", "format=e3m0", LOSS[0], "--retries", "1"]) == 0
    (run,) = SweepDir(tmp_path / "results" / "again").runs()
    assert len(run.attempts()) == 2 and run.result().metrics == {"val_loss": 1.5}
    assert read_json(run.env)["attached"]["gradients"]["values"] == 3
