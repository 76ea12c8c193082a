"""Reports on runs of a user's script: first tries, and accuracies without a declared unit."""

from cpdrun.report.answers_text import headline, notes
from cpdrun.report.study_text import may_be_share, question_notes
from cpdrun.study.reader import read_study


def add(sweep, format, seed, accuracy, *, pattern="acc ([0-9.]+)", metric="val_acc", **how):
    script = {"path": "train.py", "metrics": {metric: pattern}, "metric": None}
    measure = {"higher_is_better": True, "shown": "plain", "of_samples": False}
    done = {"judged_by": metric, "measures": {metric: measure}}
    sweep.add(format, seed=seed, metrics={metric: accuracy}, done=done, script=script, world_size=1, **how)


def trained(sweep, scale=1.0):
    for seed in range(3):
        add(sweep, "fp32", seed, scale * (0.95 + seed / 1000))
        add(sweep, "e4m3", seed, scale * (0.94 + seed / 1000))
    return sweep


def test_a_failed_first_try_with_another_pattern_is_no_row_and_no_axis(new_sweep):
    sweep = trained(new_sweep())
    for format in ("fp32", "e4m3"):
        failed = {"status": None, "outcome": "failed", "name": f"first-{format}"}
        add(sweep, format, 0, None, pattern="val loss ([0-9.]+)", metric="val_loss", **failed)
    study = read_study([sweep.dir])
    assert study.axes == [] and [len(group.values) for group in study.groups] == [3, 3]
    assert "No finished run" not in " ".join(headline(study)[0])
    assert any("first-fp32" in line for line in notes(study, [sweep.dir]))
    add(sweep, "e3m0", 0, None, status=None, outcome="failed")  # a format that always fails keeps its row
    assert {group.keys["format"] for group in read_study([sweep.dir]).groups} == {"e3m0", "e4m3", "fp32"}


def test_an_accuracy_between_0_and_1_may_be_a_share(new_sweep):
    folder = trained(new_sweep("a")).dir
    study = read_study([folder])
    assert may_be_share(study)
    assert "If it is a share, type --metric val_acc:share;" in " ".join(question_notes(study))
    shared = read_study([folder], metric="val_acc:share")
    assert shared.metric.is_fraction and shared.tolerance == 0.5 and not may_be_share(shared)
    assert not may_be_share(read_study([trained(new_sweep("c"), scale=100).dir]))
