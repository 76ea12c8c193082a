"""`cpdrun report` on one run: the fix that it names works, and runs that it cannot explain get one line."""

import json

import pytest
import yaml

from cpdrun.cli import main
from cpdrun.record import SweepDir, claim, release, write_json, write_text
from cpdrun.report.diagnosis import explain as document
from cpdrun.sweep import plan
from cpdrun.whatif.diagnosis import ESTIMATED, MEASURED, CannotDiagnoseError, diagnose

FEW = ("exp=digits_bits", "seed=0", "epochs=4", "model.width=8", "device=cpu", "statistics.every_steps=8")


def explain(run):
    return document(diagnose(run))


@pytest.fixture
def train(tmp_path, train_here):
    """train("format=e3m0", ...) -> the RunDir of a trained digits run; all are of one sweep."""

    def make(*typed: str, start: bool = True):
        (planned,) = plan([*FEW, *typed, f"results_dir={tmp_path}"]).runs
        run = SweepDir(tmp_path / planned.config["name"]).run(planned.name)
        run.path.mkdir(parents=True)
        write_text(run.config, yaml.safe_dump(planned.config))
        assert not start or train_here(run) == 0
        return run

    return make


def test_the_first_fix_repairs_the_run(train, capsys):
    train("format=fp32", "aps=false")
    lost = train("format=e3m0", "aps=false")
    found = explain(lost)
    assert (found.verdict, found.cause, found.role) == ("worse", "underflow", "gradient")
    assert found.sentences[0].startswith(f"{lost.name} is ") and "become 0 in e3m0" in found.sentences[0]
    assert {layer.figures["underflow"] for layer in found.layers} == {1.0} and len(found.layers) == 11
    assert found.fixes[0].words == ("aps=true",) and found.fixes[0].basis == ESTIMATED
    assert found.fixes[0].after > found.fixes[0].before == 0.0

    fixed = train("format=e3m0", *found.fixes[0].words)
    again, now = explain(lost), explain(fixed)
    assert (again.fixes[0].basis, again.fixes[0].run) == (MEASURED, fixed.name)
    assert again.fixes[0].value == now.value > found.value + 0.5
    assert now.lost < 0.1 < 0.5 < found.lost
    assert again.fixes[0].after < 0.7 < again.fixes[0].before

    capsys.readouterr()
    assert main(["report", str(lost.path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["sentences"] == again.sentences and said["fixes"][0]["words"] == ["aps=true"]
    assert said["lost"] == pytest.approx(found.lost) and said["not_seen"]
    assert main(["report", str(lost.path)]) == 0
    assert capsys.readouterr().out.splitlines() == again.sentences


def test_a_run_that_cannot_be_explained_gets_one_line(train, capsys):
    pending = train("format=e4m3", "aps=false", start=False)
    with pytest.raises(CannotDiagnoseError, match="has not begun"):
        explain(pending)
    held = claim(pending)
    write_json(pending.status, {"epoch": 1, "epochs": 4})
    assert "is still running (epoch 1 of 4), and so far it has nothing" in explain(pending).sentences[0]
    release(pending, held)
    failed = train("format=e5m2", "aps=false", start=False)
    write_json(failed.new_attempt().exit, {"outcome": "failed", "exit_code": 1, "reason": "it fell over"})
    line = f"{failed.name} failed: it fell over (cpdrun logs {failed.name})."
    assert explain(failed).sentences == [line]
    write_json(failed.done, {"status": "diverged", "metrics": {"test_accuracy": 0.1}})
    rows = [{"epoch": 1, "nonfinite_gradients": 3, "layers": {}}]
    write_text(failed.metrics, "".join(json.dumps(row) + "\n" for row in rows))
    assert "diverged: its loss was not finite, first in epoch 1 (3 elements" in explain(failed).sentences[0]
    write_text(failed.done, "[]")
    with pytest.raises(CannotDiagnoseError, match="does not contain a record"):
        explain(failed)
    write_text(failed.config, "- 1")
    with pytest.raises(CannotDiagnoseError, match="cannot be read"):
        explain(failed)
    capsys.readouterr()
    either = "Name either one run, or one or more sweeps"
    for words, line in [
        ([str(pending.sweep.path), str(pending.path)], either),
        ([str(pending.path), str(failed.path)], f"2 runs were named. {either}"),
        (["nothing_like_it", f"results_dir={pending.sweep.path.parent}"], "no run 'nothing_like_it'"),
    ]:
        assert main(["report", *words]) == 2
        assert line in capsys.readouterr().err
