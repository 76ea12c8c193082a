"""What a run lost and when, how it compares with its baseline, and what runs with one other setting measured."""

import math
from dataclasses import replace

import pytest
from made_up import Sweep

from cpdrun.comm.sums.orders import order_named
from cpdrun.report import diagnosis as rendered
from cpdrun.study.gradient_sums import (
    Cause,
    exponent_range,
    find_reason,
    gradient_statistics,
    group_size,
    longest_chain,
    represented_binades,
)
from cpdrun.study.reader import read_study
from cpdrun.study.records import rows_of
from cpdrun.study.run_comparison import RunVerdict, compare_run, find_neighbors, is_improvement
from cpdrun.study.study import BaselineFlaw, BaselineProblem


def layer(**values):
    usual = {"format": "e3m0", "shift": 0, "exponent_min": -20, "exponent_max": -6, "nonfinite": 0}
    return usual | {"underflow": 0.0, "overflow": 0.0, "sum_error": 0.0} | values


def row(epoch, nonfinite=0, **layers):
    return {"epoch": epoch, "step": 9 * epoch, "nonfinite_gradients": nonfinite, "layers": layers}


LOST = [
    row(n, a=layer(underflow=0.99, sum_error=1.0), b=layer(underflow=0.5, sum_error=0.2 * n)) for n in (1, 2)
]
SCALED = [row(n, a=layer(underflow=0.1, sum_error=0.1), b=layer(sum_error=0.1)) for n in (1, 2)]


@pytest.fixture
def pairs(new_sweep) -> tuple[Sweep, dict]:
    sweep, counted = new_sweep(), {"test_samples": 10_000, "num_classes": 10}
    runs = {
        "fp32": sweep.add("fp32", accuracy=0.98, done=counted),
        "fp32 of seed 1": sweep.add("fp32", seed=1, accuracy=0.99, done=counted),
        "lost": sweep.add("e3m0", accuracy=0.11, rows=LOST, done=counted),
        "scaled": sweep.add("e3m0", aps=True, accuracy=0.979, rows=SCALED, done=counted),
        "wide": sweep.add("e4m0", accuracy=0.90, rows=SCALED, done=counted),
        "wider": sweep.add("e5m0", accuracy=0.97, rows=SCALED, done=counted),
        "other seed": sweep.add("e3m0", seed=3, accuracy=0.12, rows=LOST, done=counted),
    }
    return sweep, runs


def test_a_run_is_compared_with_the_baseline_of_its_seed_or_else_with_the_mean(pairs):
    sweep, runs = pairs
    study = read_study([sweep.dir])
    lost = compare_run(study, runs["lost"])
    assert (lost.verdict, lost.same_seed, lost.baseline.name) == (RunVerdict.WORSE, True, runs["fp32"].name)
    assert lost.lost == pytest.approx(0.87) and rendered.by_chance(study, lost) is None
    gap = rendered._line("gap", study=study, comparison=lost)
    assert gap == "87.0 points worse than fp32 (test accuracy 11.0% against 98.0%, the same seed)"
    scaled = compare_run(study, runs["scaled"])
    assert scaled.verdict is RunVerdict.WITHIN
    assert rendered.by_chance(study, scaled) == {"count": 10, "samples": 10_000}
    assert compare_run(study, runs["fp32"]).verdict is RunVerdict.BASELINE
    other = compare_run(study, runs["other seed"])
    assert (other.same_seed, other.baseline_value) == (False, pytest.approx(0.985))


def test_neighbors_differ_in_one_setting_or_are_of_the_next_wider_format(pairs):
    sweep, runs = pairs
    study = read_study([sweep.dir])
    lost = compare_run(study, runs["lost"])
    found = find_neighbors(study, runs["lost"], lost)
    assert [(one.tunable, one.words, one.run.name) for one in found] == [
        ("APS", ["aps=true"], runs["scaled"].name),
        ("format", ["format=e4m0"], runs["wide"].name),
    ]
    assert [is_improvement(study, lost, one) for one in found] == [True, True]
    assert not is_improvement(study, lost, replace(found[1], comparison=replace(lost, lost=0.75)))
    reason = find_reason(gradient_statistics(rows_of(runs["lost"])))
    assert rendered._line("measured", study=study, neighbor=found[0], reason=reason) == (
        "aps=true: the run reaches 97.9%, within 0.5 points of fp32, and its sum's error goes from 65% to 10% "
        "(measured)"
    )


def test_a_neighbor_whose_setting_does_not_affect_the_baseline_has_the_same_baseline(new_sweep):
    sweep, nearest, stochastic = new_sweep(), {"rounding": "nearest_even"}, {"rounding": "stochastic"}
    sweep.add("fp32", accuracy=0.98, sync=nearest)
    lost = sweep.add("e3m0", accuracy=0.11, sync=nearest, rows=LOST)
    better = sweep.add("e3m0", accuracy=0.95, sync=stochastic, rows=SCALED)
    study = read_study([sweep.dir])
    comparison = compare_run(study, better)
    assert (comparison.verdict, comparison.lost) == (RunVerdict.WORSE, pytest.approx(0.03))
    [found] = find_neighbors(study, lost, compare_run(study, lost))
    assert (found.words, found.comparison.lost) == (["sync.rounding=stochastic"], pytest.approx(0.03))
    other = sweep.add("e3m0", accuracy=0.95, batch_size=16)
    alone = compare_run(read_study([sweep.dir]), other)
    assert (alone.verdict, alone.problem) == (RunVerdict.OPEN, BaselineProblem(BaselineFlaw.NOT_FINISHED))


def test_the_layers_that_lose_most_come_first(pairs):
    found = find_reason(gradient_statistics(rows_of(pairs[1]["lost"])))
    assert (found.cause, [one.name for one in found.worst]) == (Cause.UNDERFLOW, ["a", "b"])
    assert found.statistics.sum_error == pytest.approx((1 + 0.3) / 2)
    assert found.statistics.by_epoch(lambda moment: moment.sum_error) == pytest.approx({1: 0.6, 2: 0.7})
    when = rendered._line("when", course=rendered._course(found))
    assert when == "the sum's error is present throughout: 60% in epoch 1, 70% in epoch 2"

    def cause(*, aps, workers):
        setting = rendered._setting(found, aps, workers, {"order": "rank"})
        return rendered._line("cause", reason=found, setting=setting)

    text = cause(aps=False, workers=8)
    assert "74% of the gradients that workers send become 0 in e3m0, and the sum is wrong by 65%" in text
    assert text.endswith("e3m0 represents 2^-2 to 2^3, and the gradients range from 2^-20 to 2^-6")
    ending = "of the 6 powers of two of e3m0, APS keeps 6 free for the sum of 64 workers, which leaves 0"
    assert cause(aps=True, workers=64).endswith(ending)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"overflow": 0.01, "sum_error": None}, Cause.OVERFLOW),
        ({"underflow": 0.01, "sum_error": 0.6}, Cause.ADDITIONS),
        ({"underflow": 0.3, "sum_error": 0.04}, Cause.SMALL),
        ({"underflow": 1.0, "sum_error": None}, Cause.UNDERFLOW),  # of a sum that is 0 there is no error
        ({"format": "fp32"}, Cause.EXACT),
    ],
)
def test_the_cause_is_the_largest_part_of_the_error(new_sweep, values, cause):
    run = new_sweep().add("e3m0", rows=[row(1, a=layer(**values))])
    assert find_reason(gradient_statistics(rows_of(run))).cause is cause


def test_damaged_rows_are_skipped_and_the_first_epoch_that_was_not_finite_is_found(new_sweep):
    sweep = new_sweep()
    odd = sweep.add("e3m0", rows=[{"epoch": 1, "layers": {"a": 3, "b": {"sum_error": "x"}}}, {"layers": 1}])
    found = gradient_statistics(rows_of(odd))
    assert [one.name for one in found.layers] == ["b"] and math.isnan(found.sum_error)
    assert find_reason(gradient_statistics(rows_of(sweep.add("e3m0")))).cause is Cause.UNSEEN
    rows = [row(1, a=layer()), row(2, 7, a=layer(nonfinite=2), b=layer()), row(3, 9, b=layer(nonfinite=1))]
    first = gradient_statistics(rows_of(sweep.add("e3m0", rows=rows))).nonfinite
    assert (first.epoch, first.elements, first.layers) == (2, 7, ["a"])


def test_the_binades_of_a_layer_that_a_format_represents(new_sweep):
    rows = [row(1, a=layer(exponent_min=-10, exponent_max=-1))]
    found = gradient_statistics(rows_of(new_sweep().add("e3m0", rows=rows)))
    assert exponent_range("e3m0") == (-2, 3) and exponent_range("mxfp8_e4m3") is None
    assert represented_binades(found, "e3m0", 8, scaled=False) == (2, 10)  # 2^-2 and 2^-1
    # of 6 binades, one is for rounding up and 3 are for the sum of 8
    assert represented_binades(found, "e3m0", 8, scaled=True) == (2, 10)
    assert represented_binades(found, "e3m0", 2, scaled=True) == (4, 10)


def test_the_longest_chain_is_that_of_the_order():
    for order in ("rank", "ring", "hierarchical", "tree", "exact", "aligned_9"):
        for workers in (2, 3, 8, 12, 13, 64, 100):
            sync = {"order": order, "group_size": "auto"}
            assert longest_chain(sync, workers) == order_named(order).longest_chain(workers), (order, workers)
    assert group_size({"group_size": 4}, 16) == 4 and longest_chain({"order": "native"}, 8) is None


def test_a_running_run_is_compared_with_the_same_epoch_of_its_baseline(pairs):
    sweep, _ = pairs
    rows = [{"epoch": n, "test_accuracy": 0.5 + 0.1 * n} for n in (1, 2, 3)]
    sweep.add("fp32", seed=9, accuracy=0.98, rows=rows)
    running = sweep.add("e3m0", seed=9, status=None, rows=[{"epoch": 1, "test_accuracy": 0.1}, LOST[0]])
    comparison = compare_run(read_study([sweep.dir]), running)
    assert (comparison.verdict, comparison.epoch, comparison.same_seed) == (RunVerdict.WORSE, 1, True)
    assert (comparison.value, comparison.baseline_value) == (0.1, pytest.approx(0.6))


def test_the_page_explains_each_group_that_is_worse(pairs, report):
    page = (report(pairs[0], formats=["html"]).folder / "report.html").read_text(encoding="utf-8")
    assert '<table id="why">' in page and "74% of the gradients that workers send become 0 in e3m0" in page
    assert "aps=true: the run reaches 97.9%, within 0.5 points of fp32" in page
