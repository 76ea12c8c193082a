"""The sentence, and the statistics behind it against scipy's own tests."""

import math

import pandas as pd
import pytest
import scipy.stats
from made_up import Sweep, fill_digits

from cpdrun.study.groups.compare import difference
from cpdrun.study.metric import Metric
from cpdrun.study.reader import read_study

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_seeds_in_common_are_paired():
    a, b = {0: 0.91, 1: 0.94, 2: 0.95}, {2: 0.96, 1: 0.93, 0: 0.93}
    found = difference(a, b, ci=95)
    interval = scipy.stats.ttest_rel([a[s] for s in range(3)], [b[s] for s in range(3)]).confidence_interval(
        0.95
    )
    assert found.method == "paired"
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx(tuple(interval))


def test_a_baseline_of_more_seeds_is_paired_over_those_of_the_candidate():
    """As a search gives it: the figure in a report is that of the search."""
    a, b = {0: 0.91, 1: 0.94, 2: 0.95}, {0: 0.93, 1: 0.93, 2: 0.96, 3: 0.5}
    assert difference(a, b, ci=95) == difference(a, {seed: b[seed] for seed in a}, ci=95)


def test_other_seeds_are_compared_as_welch_does():
    a, b = {0: 0.91, 1: 0.94, 2: 0.95, 3: 0.80}, {7: 0.96, 8: 0.93}
    found = difference(a, b, ci=90)
    interval = scipy.stats.ttest_ind(list(a.values()), list(b.values()), equal_var=False).confidence_interval(
        0.90
    )
    assert found.method == "Welch"
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx(tuple(interval))


def test_lower_is_better_turns_the_sign():
    worse = difference({0: 0.3}, {0: 0.2}, ci=95, higher_is_better=False)
    assert worse.mean == pytest.approx(-0.1)


def test_verdicts_are_those_of_the_anytime_valid_test_and_marked_so(new_sweep, report):
    """Eight seeds: e4m3 equals fp32, e4m1 lies on the boundary, and e3m0 is broken."""
    sweep = new_sweep()
    for seed in range(8):
        for format, gap in (("fp32", 0), ("e4m3", -0.0004), ("e4m1", -0.005), ("e3m0", -0.6), ("e2m0", 0)):
            wobble = 0.001 * ((seed * 7 + len(format) + int(gap * 1e4)) % 5 - 2)
            about = {"test_samples": 10_000, "num_classes": 10}
            sweep.add(format, seed=seed, accuracy=0.98 + wobble + gap, done=about)
    made = report(sweep, tolerance=0.5)
    details = pd.read_csv(made.folder / "details.csv").set_index("format")
    assert details.loc["e4m3", "verdict"] == "certified" and details.loc["e3m0", "verdict"] == "refuted"
    assert details.loc["e4m1", "verdict"] == "open" and details.loc["e4m3", "pairs"] == 8
    assert details.loc["e2m0", "verdict"] == "open"  # as good as any, but below one that is not
    assert details.loc["e4m3", "anytime_low"] >= -0.005 and details.loc["e3m0", "anytime_high"] < -0.005
    assert "e2m0 without APS +0.0 points (a wider format is not certified)" in made.sentences[0]
    marks = {line.split()[0]: line for line in made.printed.splitlines() if line.strip()}
    assert "✓" in marks["e4m3"] and "✗" in marks["e3m0"] and "?" in marks["e4m1"]


def test_a_run_that_diverged_counts_against_its_format_whatever_it_measured(new_sweep, report):
    sweep = new_sweep()
    for seed in range(6):
        about = {"test_samples": 10_000, "num_classes": 10}
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed, done=about)
        status = "diverged" if seed == 4 else "finished"
        sweep.add("e4m3", seed=seed, accuracy=0.98 + 0.0011 * seed, status=status, done=about)
    details = pd.read_csv(report(sweep).folder / "details.csv").set_index("format")
    assert details.loc["e4m3", "pairs"] == 6 and details.loc["e4m3", "verdict"] == "open"


EXACT = {("fp32", False): 0.99, ("e4m1", False): 0.988, ("e3m0", False): 0.1, ("e3m0", True): 0.987}


def test_the_answer_comes_first_and_names_both_formats(new_sweep, report):
    sweep = new_sweep()
    for (format, aps), value in EXACT.items():
        for seed in range(3):
            about = {"test_samples": 10_000, "num_classes": 10}
            sweep.add(format, aps=aps, seed=seed, accuracy=value + 0.001 * seed, done=about)
    made = report(sweep)
    assert made.sentences == [
        "With APS the smallest format within 0.5 points of fp32 is e3m0 (4 bits); without APS it is e4m1 (6 bits). "
        "fp32: 99.1 ± 0.3 %. Certified at 95 %, in the mean over seeds: e3m0 with APS, e4m1 without APS (0 of 3 runs "
        "failed: with 95 % confidence at most 63 % fail). 0.5 points are 50.0 of 10000 test samples; 61 answered "
        "otherwise, over all seeds, would change the answer.",
        "Margin: 0.5 points (the default for shares).",
    ]
    assert made.printed.splitlines()[0] == made.sentences[0]


def test_the_tolerance_decides(new_sweep, report):
    sweep = new_sweep()
    for (format, aps), value in EXACT.items():
        for seed in range(2):
            sweep.add(format, aps=aps, seed=seed, accuracy=value)
    assert (
        "With APS no format is within 0.1 points of fp32 (the nearest is e3m0 (4 bits), 0.3 points worse)"
        in (report(sweep, tolerance=0.1).sentences[0])
    )


def test_a_single_seed_cannot_tell(new_sweep, report):
    made = report(fill_digits(new_sweep(), seeds=1))
    assert "Too few seeds to tell chance from effect" in made.sentences[0]


def test_a_wide_interval_is_admitted(new_sweep, report):
    sweep = new_sweep()
    for seed, (base, low) in enumerate([(0.990, 0.980), (0.980, 0.985)]):
        sweep.add("fp32", seed=seed, accuracy=base)
        sweep.add("e3m0", aps=True, seed=seed, accuracy=low)
    assert "Too few seeds to be sure, against fp32: e3m0 with APS" in report(sweep).sentences[0]


def test_without_fp32_there_is_no_comparison(new_sweep, report):
    sweep = new_sweep()
    sweep.add("e4m3", aps=True, accuracy=0.97)
    sweep.add("e3m0", aps=False, accuracy=0.4)
    assert report(sweep).sentences == [
        "No finished fp32 run to compare with. The best is e4m3 (8 bits) with APS: 97.0 %."
    ]


def test_one_sentence_for_each_number_of_workers(new_sweep, report):
    sweep = new_sweep()
    fill_digits(sweep, world_size=4)
    fill_digits(sweep, world_size=16)
    made = report(sweep)
    assert [line.split(":")[0] for line in made.sentences] == ["workers 4", "workers 16", "Margin"]


@pytest.mark.parametrize(
    ("name", "higher"),
    [
        ("test_accuracy", True),
        ("test_mean_iou", True),
        ("test_loss", False),
        ("test_bits_per_byte", False),
        ("test_perplexity_worst", False),
        ("best_test_accuracy", True),
    ],
)
def test_every_metric_of_records_that_declare_none_is_judged_the_right_way_round(name, higher):
    assert Metric(name).higher_is_better is higher


def test_runs_of_before_stand_beside_those_of_now(new_sweep):
    """A class has moved, and there was no task: neither is an axis. Nor is a task that follows the data."""
    sweep = new_sweep()
    now = {"_target_": "cpdrun.data.images.cityscapes.Cityscapes"}
    sweep.add(seed=0, data={"_target_": "cpdrun.data.cityscapes.Cityscapes"})
    sweep.add(seed=1, data=now, task={"_target_": "cpdrun.tasks.segmentation.Segmentation"})
    (group,) = read_study([sweep.dir]).groups
    assert len(group.values) == 2
    digits = {"_target_": "cpdrun.data.images.digits.Digits"}
    sweep.add(seed=0, data=digits, task={"_target_": "cpdrun.tasks.classification.Classification"})
    assert read_study([sweep.dir]).axes == ["data._target_"]


def test_a_metric_of_ones_own_is_judged_as_its_record_declares(new_sweep, report):
    """Lower energy is better, though no table knows it; so the format with more of it is the worse one."""
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


def test_a_diverged_baseline_is_no_answer(new_sweep, report):
    """A learning rate of 1e30: every run ends as diverged, at one guess of ten."""
    sweep = new_sweep()
    for format, aps in (("fp32", False), ("e4m3", False), ("e3m0", True)):
        for seed in range(3):
            sweep.add(format, aps=aps, seed=seed, accuracy=0.1, status="diverged")
    made = report(sweep)
    assert made.sentences == [
        "No answer: fp32 itself diverged in 3 of 3 runs, so that there is nothing to compare with."
    ]
    assert pd.read_csv(made.folder / "details.csv")["vs_baseline"].isna().all()


@pytest.mark.parametrize("about", [{"num_classes": 10}, {}])
def test_an_unlearnt_baseline_is_no_answer(new_sweep, report, about):
    sweep = new_sweep()
    for format in ("fp32", "e3m0"):
        for seed in range(3):
            sweep.add(format, seed=seed, accuracy=0.1 + 0.01 * seed, done={"test_samples": 360} | about)
    (sentence,) = report(sweep).sentences
    assert sentence.startswith("No answer: fp32 itself") and "smallest format" not in sentence
    assert (
        "did not learn (11.0 %; a guess among 10 classes 10.0 %)"
        if about
        else "does not say of how many classes"
    ) in sentence


def test_one_in_twelve_of_a_thousand_classes_is_learnt(new_sweep, report):
    sweep = new_sweep()
    for format in ("fp32", "e3m0"):
        for seed in range(3):
            about = {"test_samples": 50_000, "num_classes": 1000}
            sweep.add(format, seed=seed, accuracy=0.08 + 0.001 * seed, done=about)
    assert (
        report(sweep)
        .sentences[0]
        .startswith("Without APS the smallest format within 0.5 points of fp32 is e3m0")
    )


def test_a_diverged_run_is_never_within(new_sweep, report):
    sweep = new_sweep()
    for seed in range(3):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed)
        sweep.add("e4m3", seed=seed, accuracy=0.98 + 0.001 * seed)
        sweep.add("e3m0", seed=seed, accuracy=0.99, status="diverged" if seed == 1 else "finished")
    made = report(sweep)
    assert "smallest format within 0.5 points of fp32 is e4m3" in made.sentences[0]
    assert "e3m0" not in made.sentences[0]


def test_equal_counts_of_every_seed_are_no_certainty(new_sweep, report):
    """40 test samples: not one differs, and yet one in ten may."""
    sweep = new_sweep()
    for seed in range(3):
        for format in ("fp32", "e3m0"):
            sweep.add(format, seed=seed, accuracy=0.95, done={"test_samples": 40, "num_classes": 10})
    made = report(sweep)
    assert "Too few seeds to be sure, against fp32: e3m0 without APS +0.0 points" in made.sentences[0]
    assert "0.5 points are 0.2 of 40 test samples; 1 answered otherwise in one run" in made.sentences[0]
    details = pd.read_csv(made.folder / "details.csv")
    assert (details["test_accuracy_high"] <= 1).all() and (details["test_accuracy_low"] < 0.9).all()


def test_it_says_how_many_seeds_would_do(new_sweep, report):
    sweep = new_sweep()
    for seed, gap in enumerate((-0.004, 0.0, 0.004)):
        sweep.add(seed=seed, accuracy=0.97)
        sweep.add("e3m0", seed=seed, accuracy=0.97 + gap)
    # five points of a thousand are 1.25 standard deviations
    assert "e3m0 without APS +0.0 points (about 10 seeds would do)" in report(sweep).sentences[0]


def test_what_did_not_learn_is_called_so(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed)
        sweep.add("e3m0", seed=seed, accuracy=0.019 + 0.001 * seed)
    made = report(sweep)
    row = next(line for line in made.printed.splitlines() if line.strip().startswith("e3m0"))
    assert row.split("  ")[-1].strip() == "did not learn"
    assert (
        "Without APS no format is within 0.5 points of fp32 (every one failed, diverged or did not learn)"
        in (made.sentences[0])
    )


def test_equal_counts_leave_open_what_the_rule_of_three_says():
    found = difference({0: 0.9, 1: 0.9, 2: 0.9}, {0: 0.9, 1: 0.9, 2: 0.9}, ci=95, samples=1000)
    assert found.half_width == pytest.approx(1 - 0.05 ** (1 / 3000))
    assert math.isnan(difference({0: 0.9, 1: 0.9}, {0: 0.9, 1: 0.9}, ci=95).half_width)


def test_an_fp32_without_a_value_is_no_answer(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=None)
        sweep.add("e4m3", seed=seed, accuracy=0.98)
    assert report(sweep).sentences == [
        "No answer: fp32 has no value of test_accuracy, so that there is nothing to compare with."
    ]


def test_a_run_that_gave_up_counts_for_what_it_measured_and_is_said(tmp_path):
    sweep = Sweep(tmp_path)
    for seed in range(4):
        sweep.add("fp32", seed=seed, accuracy=0.98 + seed / 1000)
        gave_up = seed == 3
        sweep.add(
            "e4m3",
            seed=seed,
            accuracy=0.1 if gave_up else 0.98,
            status="did not learn" if gave_up else "finished",
        )
    study = read_study([sweep.dir])
    (group,) = (group for group in study.groups if group.format == "e4m3")
    assert (group.gave_up, group.diverged, group.by_seed[3]) == (1, 0, 0.1)
    assert not study.may_be_within(group) and "1 did not learn" in study.describe(group)
