"""The verdicts of a report and the pairs that open ones still need. snapshots/headline.txt has the sentences."""

import math

import pandas as pd
import pytest
import yaml

from cpdrun.record import write_text
from cpdrun.report.result_text import describe_group, more_text, result_text
from cpdrun.stats.evidence import NO_PRIOR, Judgment, PairsRange, SpreadPrior, Verdict, judge
from cpdrun.stats.failures import FailureCounts
from cpdrun.study.answers import ladder_verdicts
from cpdrun.study.metric import Metric
from cpdrun.study.reader import read_study

ABOUT = {"test_samples": 10_000, "num_classes": 10}


def test_a_result_has_its_interval_the_interval_of_its_own_spread_and_its_failures():
    def shown(prior, counts):
        levels = {"certify": 0.05, "refute": 0.05, "confidence": 0.95}
        found = judge([0.02, -0.01, -0.025], 0.01, **levels, prior=prior)
        return found, result_text(Metric("test_accuracy"), found, counts, 95)

    found, text = shown(SpreadPrior(0.011, 4), FailureCounts(ended=3))
    gap, rest = text.split(" (3 pairs; on its own spread ")
    assert gap.startswith("−0.50 points [−") and gap.endswith("]")
    assert rest.endswith("]). 0 of 3 runs failed (with 95% confidence at most 63% fail)")
    assert found.own_low < found.low < found.high < found.own_high
    _, alone = shown(NO_PRIOR, FailureCounts(3, errors=1))
    assert "own spread" not in alone
    assert alone.endswith(". 1 of 3 runs failed (with 95% confidence at most 86% fail)")


def test_an_open_verdict_says_how_many_more_pairs_it_needs_or_why_not():
    def shown(more, mean=0.0, deviation=0.01, pairs=3):
        more = None if more is None else PairsRange(*more)
        ends = (-math.inf, math.inf) * 2
        found = Judgment(Verdict.OPEN, pairs, None, mean, *ends, 0.0, 0.0, deviation, more=more)
        return more_text(found, margin=0.01, samples=360)

    assert shown((4, 3, 8)) == "about 4 more pairs (3 to 8)"
    assert shown((1, 1, 2)) == "about 1 more pair (1 to 2)"
    assert shown(None) == "too noisy to say yet how many more pairs it needs"
    assert shown(None, deviation=0.0) == "equal in every pair, so that the spread is unknown"
    noisy = "it would take more than 100 pairs, because the runs are too noisy for this margin"
    assert shown((591, 296, 1182)) == noisy
    assert shown(None, pairs=30) == noisy
    assert shown((591, 296, 1182), mean=-0.0094) == (
        "the test set of 360 samples cannot decide it, because the mean lies 0.2 samples from the margin"
    )


def test_verdicts_are_in_the_table_and_the_first_sentence(new_sweep, report):
    """Eight seeds: e4m3 equals fp32, e4m1 lies on the boundary, and e3m0 is broken."""
    sweep = new_sweep()
    for seed in range(8):
        for format, gap in (("fp32", 0), ("e4m3", -0.0004), ("e4m1", -0.005), ("e3m0", -0.6), ("e2m0", 0)):
            wobble = 0.001 * ((seed * 7 + len(format) + int(gap * 1e4)) % 5 - 2)
            sweep.add(format, seed=seed, accuracy=0.98 + wobble + gap, done=ABOUT)
    made = report(sweep, tolerance=0.5)
    details = pd.read_csv(made.folder / "details.csv").set_index("format")
    # e2m0 is as good as any, but narrower than a format that is not good enough
    verdicts = {"e4m3": "certified", "e4m1": "open", "e3m0": "refuted", "e2m0": "open"}
    assert details["verdict"].dropna().to_dict() == verdicts and details.loc["e4m3", "pairs"] == 8
    assert details.loc["e4m3", "vs_baseline_low"] >= -0.005 > details.loc["e3m0", "vs_baseline_high"]
    assert made.sentences[0] == made.printed.splitlines()[0]
    assert made.sentences[0].startswith(
        "CERTIFIED: e4m3 (8 bits) without APS is at most 0.5 points worse than"
    )
    assert ". Still open: e4m1 (6 bits), " in made.sentences[0]
    rows = {line.split()[0]: line.split()[-1] for line in made.printed.splitlines() if line.strip()}
    assert {format: rows[format] for format in ("e4m3", "e4m1", "e3m0")}.items() <= verdicts.items()
    (answer,) = made.verdicts
    assert (answer["verdict"], answer["candidate"], answer["bits"]) == ("certified", "e4m3 without APS", 8)


def test_a_mean_within_the_margin_may_be_open_and_the_next_command_asks_for_pairs(new_sweep, report):
    sweep = new_sweep()
    for seed, gap in enumerate((-0.004, 0.0, 0.004)):
        sweep.add(seed=seed, accuracy=0.97)
        sweep.add("e3m0", seed=seed, accuracy=0.97 + gap)
    manifest = {"runs": [], "overrides": ["exp=digits", "seed=0,1,2", "aps=false"]}
    write_text(sweep.dir.manifest, yaml.safe_dump(manifest))
    made = report(sweep)
    assert made.sentences[0].startswith("OPEN: ")
    assert made.sentences[0].endswith("; about 7 more pairs (4 to 14).")
    assert made.next_command == "cpdrun search exp=digits aps=false"
    assert (made.verdicts[0]["more"], made.verdicts[0]["more_range"]) == (7, [4, 14])
    # A search that has used all seeds would start no run if the same command were typed again.
    asked = {"search": {"baseline": {"format": "fp32", "aps": False}}, "axes": {"seed": [0, 1, 2]}}
    write_text(sweep.dir.manifest, yaml.safe_dump(manifest | asked))
    assert report(sweep).next_command == "cpdrun search exp=digits aps=false search.most_seeds=6"


def test_the_pairs_of_wider_open_formats_are_needed_too(new_sweep):
    """e3m0 is certified only after e4m3, which is far noisier."""
    sweep = new_sweep()
    for seed in range(4):
        sweep.add(seed=seed, accuracy=0.97, done=ABOUT)
        sweep.add("e4m3", seed=seed, accuracy=0.97 + 0.006 * (-1) ** seed, done=ABOUT)
        sweep.add("e3m0", seed=seed, accuracy=0.97 + 0.0001 * (-1) ** seed, done=ABOUT)
    study = read_study([sweep.dir])
    (answer,) = ladder_verdicts(study)
    (e4m3,) = (judged for group, judged in study.judged.items() if group.format == "e4m3")
    assert answer.candidate == "e3m0 without APS" and answer.verdict == "open"
    assert answer.more == e4m3.judgment.more.likely > 0


def test_the_direction_of_a_metric_that_no_record_declares():
    better = ("test_accuracy", "test_mean_iou", "best_test_accuracy")
    assert all(Metric(name).higher_is_better for name in better)
    assert [Metric(name).title for name in better[:2]] == ["test accuracy, %", "test mean IoU, %"]
    worse = ("test_loss", "test_bits_per_byte", "test_perplexity_worst")
    assert not any(Metric(name).higher_is_better for name in worse)


def test_a_metric_of_ones_own_is_judged_as_its_record_declares(new_sweep):
    """Less energy is better, so the format with more of it is worse."""
    sweep = new_sweep()
    measures = {"test_energy": {"higher_is_better": False, "shown": "plain", "of_samples": False}}
    for fmt, values in (("fp32", (1.0, 1.1, 1.2)), ("e4m3", (3.0, 3.1, 3.2))):
        for seed, value in enumerate(values):
            best = {"metric": "test_energy", "value": value / 2, "epoch": 2}
            done = {"measures": measures, "judged_by": "test_energy", "best": best}
            sweep.add(fmt, seed=seed, metrics={"test_energy": value, "test_loss": 0.1}, done=done)
    study = read_study([sweep.dir])
    assert study.metric.name == "test_energy" and not study.metric.higher_is_better
    (e4m3,) = (group for group in study.groups if group.name == "e4m3")
    assert study.against_baseline(e4m3).mean == pytest.approx(-2.0)
    best = read_study([sweep.dir], metric="best_test_energy")
    assert [group.mean for group in best.groups] == [pytest.approx(0.55), pytest.approx(1.55)]
    assert not best.metric.higher_is_better


def test_runs_of_older_versions_are_in_the_groups_of_newer_ones(new_sweep):
    """A class that has moved is no axis, nor is a task that older records lack or that follows the data."""
    sweep = new_sweep()
    now = {"_target_": "cpdrun.data.images.cityscapes.Cityscapes"}
    sweep.add(seed=0, data={"_target_": "cpdrun.data.cityscapes.Cityscapes"})
    sweep.add(seed=1, data=now, task={"_target_": "cpdrun.tasks.segmentation.Segmentation"})
    (group,) = read_study([sweep.dir]).groups
    assert len(group.values) == 2
    digits = {"_target_": "cpdrun.data.images.digits.Digits"}
    sweep.add(seed=0, data=digits, task={"_target_": "cpdrun.tasks.classification.Classification"})
    assert read_study([sweep.dir]).axes == ["data._target_"]


def test_a_format_that_did_not_learn_is_marked(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed)
        sweep.add("e3m0", seed=seed, accuracy=0.019 + 0.001 * seed)
    row = next(line for line in report(sweep).printed.splitlines() if line.strip().startswith("e3m0"))
    assert "did not learn" in row


def test_a_run_that_gave_up_counts_with_its_value(new_sweep):
    sweep = new_sweep()
    for seed in range(4):
        sweep.add(seed=seed, accuracy=0.98 + seed / 1000)
        end = {"accuracy": 0.1, "status": "did not learn"} if seed == 3 else {"accuracy": 0.98}
        sweep.add("e4m3", seed=seed, **end)
    study = read_study([sweep.dir])
    (group,) = (group for group in study.groups if group.format == "e4m3")
    assert (len(group.gave_up_seeds), group.diverged, group.by_seed[3]) == (1, 0, 0.1)
    assert not study.may_be_within(group) and "1 did not learn" in describe_group(study, group)
