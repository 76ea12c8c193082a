"""What a report says first: verdicts, what is open and how many more pairs it needs, and what was compared."""

import math

import pandas as pd
import pytest
import yaml
from made_up import Sweep, fill_digits

from cpdrun.record import write_text
from cpdrun.report.result_text import describe_group, more_text, result_text
from cpdrun.stats.evidence import NO_PRIOR, Judgement, PairsRange, SpreadPrior, Verdict, judge
from cpdrun.stats.failures import FailureCounts
from cpdrun.study.answers import ladder_verdicts
from cpdrun.study.metric import Metric
from cpdrun.study.reader import read_study

pytestmark = pytest.mark.usefixtures("no_pictures")

ABOUT = {"test_samples": 10_000, "num_classes": 10}


def judged(gaps, margin=0.01, prior=NO_PRIOR):
    return judge(gaps, margin, certify=0.05, refute=0.05, confidence=0.95, prior=prior)


def test_a_result_is_three_numbers_each_with_its_assumption():
    found = judged([0.02, -0.01, -0.025], prior=SpreadPrior(0.011, 4))
    text = result_text(Metric("test_accuracy"), found, FailureCounts(ended=3), 95)
    gap, rest = text.split(" (3 pairs; on its own spread ")
    assert gap.startswith("−0.50 points [−") and gap.endswith("]")
    assert rest.endswith("]). 0 of 3 runs failed (with 95 % confidence at most 63 % fail)")
    assert found.own_low < found.low < found.high < found.own_high
    alone = result_text(
        Metric("test_accuracy"), judged([0.02, -0.01, -0.025]), FailureCounts(3, errors=1), 95
    )
    assert "own spread" not in alone
    assert alone.endswith(". 1 of 3 runs failed (with 95 % confidence at most 86 % fail)")


def needing(more, mean=0.0, pairs=3, deviation=0.01):
    ends = (-math.inf, math.inf) * 2
    return Judgement(Verdict.OPEN, pairs, None, mean, *ends, 0.0, 0.0, deviation, more=more)


@pytest.mark.parametrize(
    ("judgement", "expected"),
    [
        (needing(PairsRange(4, 3, 8)), "about 4 more pairs (3 to 8)"),
        (needing(PairsRange(1, 1, 2)), "about 1 more pair (1 to 2)"),
        (needing(None), "too noisy to say yet how many more pairs it needs"),
        (needing(None, deviation=0.0), "equal in every pair, so that the spread is unknown"),
        (
            needing(PairsRange(591, 296, 1182)),
            "it would take more than 100 pairs, because the runs are too noisy for this margin",
        ),
        (
            needing(PairsRange(591, 296, 1182), mean=-0.0094),
            "the test set of 360 samples cannot decide it, because the mean lies 0.2 samples from the margin",
        ),
    ],
)
def test_an_open_question_says_how_many_more_pairs_it_needs_or_why_not(judgement, expected):
    assert more_text(judgement, margin=0.01, samples=360) == expected


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
    assert (
        details.loc["e4m3", "vs_baseline_low"] >= -0.005 and details.loc["e3m0", "vs_baseline_high"] < -0.005
    )
    assert made.sentences[0].startswith(
        "CERTIFIED: e4m3 (8 bits) without APS is at most 0.5 points worse than fp32"
    )
    assert ". Still open: e4m1 (6 bits), " in made.sentences[0]
    rows = {line.split()[0]: line.split()[-1] for line in made.printed.splitlines() if line.strip()}
    assert (rows["e4m3"], rows["e3m0"], rows["e4m1"]) == ("certified", "refuted", "open")


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


def test_the_verdict_comes_first(new_sweep, report):
    sweep = new_sweep()
    for (format, aps), value in EXACT.items():
        for seed in range(3):
            sweep.add(format, aps=aps, seed=seed, accuracy=value + 0.001 * seed, done=ABOUT)
    made = report(sweep)
    assert made.sentences[0].startswith("CERTIFIED: e3m0 (4 bits) with APS")
    assert made.printed.splitlines()[0] == made.sentences[0]
    with_aps, without = made.verdicts
    assert (with_aps["verdict"], with_aps["candidate"], with_aps["bits"]) == ("certified", "e3m0 with APS", 4)
    assert without["candidate"] == "e4m1 without APS" and without["more"] is None and made.next_command == ""


def test_what_is_within_the_margin_in_the_mean_alone_is_open(new_sweep, report):
    """The mean of e3m0 is within 0.5 points, but three pairs leave open whether it is enough."""
    sweep = new_sweep()
    for seed, gap in enumerate((-0.004, 0.0, 0.004)):
        sweep.add(seed=seed, accuracy=0.97)
        sweep.add("e3m0", seed=seed, accuracy=0.97 + gap)
    write_text(
        sweep.dir.manifest,
        yaml.safe_dump({"runs": [], "overrides": ["exp=digits", "seed=0,1,2", "aps=false"]}),
    )
    made = report(sweep)
    assert made.sentences[0].startswith(
        "OPEN: no format without APS is certified to be at most 0.5 points worse"
    )
    assert "Most likely e3m0 (4 bits): +0.00 points [" in made.sentences[0]
    assert made.sentences[0].endswith("; about 7 more pairs (4 to 14).")
    assert made.next_command == "cpdrun search exp=digits aps=false"
    assert (made.verdicts[0]["more"], made.verdicts[0]["more_range"]) == (7, [4, 14])


def test_what_wider_open_formats_need_counts_too(new_sweep):
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
    assert answer.more == e4m3.judgement.more.likely > 0


def test_the_margin_decides(new_sweep, report):
    sweep = new_sweep()
    for (format, aps), value in EXACT.items():
        for seed in range(3):
            sweep.add(format, aps=aps, seed=seed, accuracy=value + 0.001 * seed, done=ABOUT)
    made = report(sweep, tolerance=0.1)
    assert made.sentences[0].startswith(
        "REFUTED: e3m0 (4 bits) with APS is more than 0.1 points worse than fp32: −0.30"
    )
    assert made.sentences[1].endswith(". No narrower format can be certified.")


def test_a_single_seed_cannot_tell(new_sweep, report):
    made = report(fill_digits(new_sweep(), seeds=1))
    assert made.sentences[0].startswith("OPEN: ") and "(1 pair)" in made.sentences[0]


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
        "No answer: fp32 itself diverged in 3 of 3 runs, so there is nothing to compare with."
    ]
    assert pd.read_csv(made.folder / "details.csv")["vs_baseline"].isna().all()


@pytest.mark.parametrize("about", [{"num_classes": 10}, {}])
def test_an_unlearnt_baseline_is_no_answer(new_sweep, report, about):
    sweep = new_sweep()
    for format in ("fp32", "e3m0"):
        for seed in range(3):
            sweep.add(format, seed=seed, accuracy=0.1 + 0.01 * seed, done={"test_samples": 360} | about)
    (sentence,) = report(sweep).sentences
    assert sentence.startswith("No answer: fp32 itself")
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
            sweep.add(
                format, seed=seed, accuracy=0.08 + 0.001 * seed + 0.0001 * (format == "e3m0"), done=about
            )
    assert report(sweep).sentences[0].startswith("CERTIFIED: e3m0 (4 bits) without APS")


def test_a_diverged_run_is_never_within(new_sweep, report):
    sweep = new_sweep()
    for seed in range(5):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed, done=ABOUT)
        sweep.add("e4m3", seed=seed, accuracy=0.9801 + 0.001 * seed + 0.0001 * (seed % 2), done=ABOUT)
        sweep.add(
            "e3m0", seed=seed, accuracy=0.99, status="diverged" if seed == 1 else "finished", done=ABOUT
        )
    certified, _, baseline = report(sweep).sentences
    assert certified.startswith("CERTIFIED: e4m3 (8 bits) without APS") and "e3m0" not in certified
    assert "Failures: e3m0 without APS, 1 of 5 runs failed (1 diverged)." in baseline


def test_equal_counts_of_every_seed_are_no_certainty(new_sweep, report):
    """40 test samples: not one differs, and yet one in ten may."""
    sweep = new_sweep()
    for seed in range(3):
        for format in ("fp32", "e3m0"):
            sweep.add(format, seed=seed, accuracy=0.95, done={"test_samples": 40, "num_classes": 10})
    made = report(sweep)
    assert (
        made.sentences[0].startswith("OPEN: ")
        and "0.5 points are 0.2 of 40 test samples" in made.sentences[-1]
    )


def test_what_did_not_learn_is_called_so(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed)
        sweep.add("e3m0", seed=seed, accuracy=0.019 + 0.001 * seed)
    made = report(sweep)
    row = next(line for line in made.printed.splitlines() if line.strip().startswith("e3m0"))
    assert "did not learn" in row


def test_an_fp32_without_a_value_is_no_answer(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=None)
        sweep.add("e4m3", seed=seed, accuracy=0.98)
    assert report(sweep).sentences == [
        "No answer: fp32 has no value of test_accuracy, so there is nothing to compare with."
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
    assert (len(group.gave_up_seeds), group.diverged, group.by_seed[3]) == (1, 0, 0.1)
    assert not study.may_be_within(group) and "1 did not learn" in describe_group(study, group)
