"""The ledger of hypotheses: weights never change, nothing is given back, and their sum is at most 1."""

import math
import random

import pytest

from cpdrun.stats.evidence import SpreadPrior, Verdict
from cpdrun.stats.ladder import settle
from cpdrun.stats.ledger import AskedLadder, Ledger

METRIC = "test_accuracy"


def flat(hypotheses):
    return [each for ladder in hypotheses for width in ladder for each in width]


def asked(ledger, *ladders):
    """Return the weights by candidate, and the ledger afterwards."""
    found = flat(ledger.ask(METRIC, ladders))
    return {each.candidate: each.weight for each in found}, ledger.merged(found)


def ladder(*widths, start=0, baseline="fp32"):
    return AskedLadder(baseline, widths, start)


def test_ladders_share_the_weight_equally_and_so_do_the_formats_of_a_width():
    weights, ledger = asked(Ledger(), ladder(["a1", "a2"], ["a3"]), ladder(["b1"], ["b2", "b3"]))
    assert weights == pytest.approx({"a1": 0.2, "a2": 0.2, "a3": 0.4, "b1": 0.4, "b2": 0.2, "b3": 0.2})
    assert ledger.left == pytest.approx(0.2)
    assert next(each for each in ledger.hypotheses if each.candidate == "a3").opened_by == ("a1", "a2")


@pytest.mark.parametrize("fewer", [[ladder(["a"], ["b"])], [ladder(["a"])], [ladder(["c"], ["d"])]])
def test_a_smaller_question_keeps_the_weights(fewer):
    first, ledger = asked(Ledger(), ladder(["a"], ["b"]), ladder(["c"], ["d"]))
    again, after = asked(ledger, *fewer)
    assert again == {name: first[name] for name in again} and after == ledger


def test_formats_asked_one_by_one_get_falling_weights():
    ledger, weights = Ledger(), []
    for name in "abcd":
        found, ledger = asked(ledger, ladder([name]))
        weights.append(found[name])
    assert weights == pytest.approx([0.8, 0.1, 0.05, 0.025]) and ledger.left == pytest.approx(0.025)


def test_only_the_first_width_below_the_narrowest_continues_a_ladder():
    _, ledger = asked(Ledger(), ladder(["a"], ["b"]))
    weights, ledger = asked(ledger, ladder(["a"], ["b"], ["c1"]))
    assert weights["c1"] == 0.8 and ledger.left == pytest.approx(0.2)
    weights, ledger = asked(ledger, ladder(["a"], ["b"], ["c2"], ["d"]))  # without c1, after a look at it
    assert weights["c2"] == weights["d"] == pytest.approx(0.1)


def test_a_format_without_the_formats_that_opened_it_is_a_new_hypothesis():
    first, ledger = asked(Ledger(), ladder(["a", "b"], ["c"], ["d"]))
    assert asked(ledger, ladder(["a"], ["c"]))[0]["c"] == first["c"]
    assert asked(ledger, ladder(["a", "b"], ["new"], ["c"], ["d"]))[0]["c"] == first["c"]
    assert asked(ledger, ladder(["c"], ["d"]))[0] == pytest.approx({"c": 0.1, "d": 0.8})


def test_a_start_leaves_a_share_to_every_wider_width():
    weights, ledger = asked(Ledger(), ladder(["a"], ["b"], ["c"], ["d"], start=2))
    expected = {"a": 0.8 / 16, "b": 0.8 / 8, "c": 0.6, "d": 0.6}
    assert weights == pytest.approx(expected)
    assert asked(ledger, ladder(["a"], ["b"], ["c"], ["d"]))[0] == weights


def test_another_metric_or_baseline_is_another_hypothesis():
    _, ledger = asked(Ledger(), ladder(["a"]))
    assert asked(ledger, ladder(["a"], baseline="bf16"))[0]["a"] == pytest.approx(0.1)
    (other,) = flat(ledger.ask("test_loss", [ladder(["a"])]))
    assert other.weight == pytest.approx(0.1)


def test_the_weights_of_random_questions_sum_to_at_most_one():
    rng = random.Random(0)
    for _ in range(50):
        ledger = Ledger()
        for _ in range(6):
            names = rng.sample("abcdefgh", rng.randrange(1, 8))
            widths = [[name for name in names if name in of] for of in ("ab", "cde", "f", "gh")]
            widths = [width for width in widths if width]
            ledger = asked(ledger, ladder(*widths, start=rng.randrange(len(widths))))[1]
        roots = [each.weight for each in ledger.hypotheses if not each.opened_by]
        assert math.fsum(roots) <= 1 + 1e-12 and all(each.weight > 0 for each in ledger.hypotheses)


def test_the_best_of_several_ladders_stays_open_when_asked_again_alone():
    """The best of four ladders must not be certified after a look at all of them."""
    gaps = [
        [-0.1, -0.8, -0.2, -0.6, 0.1, -0.5],
        [-1.2, -0.7, -1.6, -0.1, -0.9, -1.3],
        [-0.5, -1.9, -0.8, -0.7, -1.2, -0.4],
        [-1.5, -0.6, -1.4, -0.6, -0.8, -1.0],
    ]

    def verdict(known, i):
        (width,) = settle([[gaps[i]]], 1.0, known, alpha=0.05, barred=[[False]])
        return width.verdict

    ladders = [ladder([f"workers {i}"]) for i in range(4)]
    together = Ledger().ask(METRIC, ladders)
    ledger = Ledger().merged(flat(together))
    assert [verdict(known, i) for i, known in enumerate(together)] == [Verdict.OPEN] * 4
    assert verdict(ledger.ask(METRIC, ladders[:1])[0], 0) is Verdict.OPEN
    assert verdict(Ledger().ask(METRIC, ladders[:1])[0], 0) is Verdict.CERTIFIED  # had it been asked alone


def test_a_ledger_survives_the_disk_and_a_prior_is_set_once():
    _, ledger = asked(Ledger(), ladder(["a"], ["b"]))
    first, _ = ledger.hypotheses
    fixed = ledger.merged([type(first)(**{**vars(first), "prior": SpreadPrior(0.3, 2)})])
    later = fixed.merged([type(first)(**{**vars(first), "prior": SpreadPrior(9.0, 4), "weight": 1.0})])
    assert later == fixed and fixed.hypotheses[0].prior == SpreadPrior(0.3, 2)
    assert Ledger.read(fixed.as_yaml) == fixed


@pytest.mark.parametrize("block", [None, 3, {"hypotheses": [{"metric": 1}, 2, {}]}, {"hypotheses": "x"}])
def test_unreadable_hypotheses_are_ignored(block):
    assert Ledger.read(block).hypotheses == ()


def test_a_sweep_of_an_older_version_counts_its_ladders_and_formats():
    ledger = Ledger.read(None, {"chains": 2, "formats": {8: 2}})
    (found,) = ledger.ask(METRIC, [AskedLadder("fp32", [["a"], ["b"]], 0, [8, 4])])
    assert [width[0].weight for width in found] == pytest.approx([0.2, 0.2])
