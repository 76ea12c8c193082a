"""The metric of a script: a wrong pattern costs one run, and correcting it trains nothing again."""

import pytest

from cpdrun.cli import main
from cpdrun.record import SweepDir

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
seed = parser.parse_args().seed
for epoch in (1, 2):
    print(f"epoch {epoch}: train loss 0.5, validation score: -1,00{epoch}.{seed}, val_acc=0.{epoch}{seed}")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def runs_of(folder):
    return sorted(SweepDir(folder / "results" / "train").runs(), key=lambda run: run.name)


def test_a_wrong_pattern_costs_one_run_and_its_correction_none(here, capsys):
    sweep = ["sweep", "train.py", "seed=0,1,2"]
    score = "script.direction.score=max"
    assert main([*sweep, "script.metrics.score='test score ([0-9.]+)'", score]) == 1
    said = capsys.readouterr().out
    assert "The first run ended without its metric. No other run was started" in said
    assert said.count("validation score: -1,002.0") == 1
    (run,) = runs_of(here)

    assert main([*sweep, "script.metrics.score='validation score: ([0-9.]+)'", score]) == 0
    assert "1 run done; metrics read again, nothing to train" in capsys.readouterr().out
    assert [run.result().metrics for run in runs_of(here)].count({"score": -1002.1}) == 1
    assert len(run.attempts()) == 1 and run.result().metrics == {"score": -1002.0}
    before = [run.attempts() for run in runs_of(here)]

    assert main([*sweep, "--dry-run"]) == 0
    assert "3 runs have ended; metrics would be read again" in capsys.readouterr().out
    assert main(sweep) == 0
    assert "3 runs done; metrics read again, nothing to train" in capsys.readouterr().out
    results = [run.result() for run in runs_of(here)]
    assert {result.judge for result in results} == {"val_acc"}
    assert run.result().metrics == {"train_loss": 0.5, "val_acc": 0.2}
    assert [row.epoch for row in run.logged()] == [1, 2]

    assert main([*sweep, "metric=test_loss"]) == 0
    assert (
        "3 runs keep their former metrics: the script ended well, but never logged" in capsys.readouterr().out
    )
    assert [run.attempts() for run in runs_of(here)] == before
    assert run.result().metrics == {"train_loss": 0.5, "val_acc": 0.2}


def test_the_metrics_of_the_first_run_are_printed(here, capsys):
    assert main(["sweep", "train.py", "seed=0,1"]) == 0
    said = "".join(capsys.readouterr())
    assert "note: train has an option --seed, so each run passes its own seed with --seed {seed}" in said
    assert "found train_loss and val_acc; val_acc decides, higher is better" in said


def test_a_script_without_an_option_for_the_seed_is_pointed_out(here, capsys):
    script = (here / "train.py").read_text()
    (here / "train.py").write_text(script.replace('"--seed"', '"--random-state"'))
    note = "note: train has no option --seed, so it is not told the seed of its run"
    for command in ("sweep", "search"):
        assert main([command, "train.py", "format=fp32,e4m3", "--dry-run"]) == 0
        assert note in capsys.readouterr().err
    typed = ["train.py", "--random-state", "{seed}", "--", "format=fp32,e4m3", "--dry-run"]
    assert main(["search", *typed]) == 0
    assert note not in capsys.readouterr().err


def test_a_script_that_fails_at_once_fails_once(here, capsys):
    (here / "train.py").write_text("import no_such_module\n")
    assert main(["sweep", "train.py", "seed=0,1"]) == 1
    assert "No other run was started; --keep-going starts them anyway" in capsys.readouterr().out
    assert len(runs_of(here)) == 1
    assert main(["sweep", "train.py", "seed=0,1", "--keep-going"]) == 1
    assert len(runs_of(here)) == 2
