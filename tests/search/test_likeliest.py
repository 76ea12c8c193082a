"""Which format of a width is tried first: what the baseline recorded of its gradients says, and nothing else."""

import itertools
import math

import pytest
from made_up_world import BASELINE, RULES, World

from cpdrun.record import EpochRow
from cpdrun.search.likeliest import SHARES, Gradients, likeliest_first, loss, lost_and_noise
from cpdrun.search.schedule import Candidate, Chain, Ended, stand, wanted

# of a digits run with 8 workers: how many layers, over all epochs, had their largest gradient in which octave
DIGITS = Gradients({-4: 2, -5: 12, -6: 36, -7: 55, -8: 27, -9: 21, -10: 5, -11: 5, -12: 2}, 7)


def tried(*formats, scaled, gradients=DIGITS):
    width = [Candidate(name, BASELINE, name, 4) for name in formats]
    configs = {name: {"format": name, "aps": scaled} for name in formats}
    return [candidate.name for candidate in likeliest_first(width, configs, gradients)]


def test_with_aps_range_that_no_gradient_needs_gives_way_to_precision():
    assert tried("e5m0", "e4m1", "e3m2", "e2m3", scaled=True) == ["e4m1", "e3m2", "e5m0", "e2m3"]
    assert tried("e5m2", "e4m3", "e3m4", scaled=True) == ["e3m4", "e4m3", "e5m2"]


def test_the_order_is_that_of_the_training_losses_that_digits_runs_ended_with():
    ended = {"e4m0": 0.017, "e3m1": 0.023, "e2m2": 0.50, "e1m3": 2.34}
    assert tried(*reversed(ended), scaled=True) == sorted(ended, key=ended.get)
    assert tried("e1m2", "e2m1", "e3m0", scaled=True)[0] == "e3m0"
    assert (
        loss("e3m0", DIGITS, scaled=True)
        < loss("e4m0", DIGITS, scaled=False)
        < loss("e2m2", DIGITS, scaled=True)
    )


def test_without_aps_the_recorded_exponents_decide():
    assert tried("e4m0", "e3m1", "e2m2", scaled=False) == ["e4m0", "e3m1", "e2m2"]
    assert tried("e3m4", "e4m3", "e5m2", scaled=False) == ["e5m2", "e4m3", "e3m4"]
    large = Gradients({0: 5, -1: 5}, 7)
    assert tried("e5m0", "e4m1", "e3m2", scaled=False, gradients=large)[0] == "e3m2"


def test_more_additions_ask_for_more_room_and_more_precision():
    chain = Gradients(DIGITS.largest, 63)
    assert loss("e3m0", chain, scaled=True) > 2 * loss("e3m0", DIGITS, scaled=True)
    assert tried("e4m1", "e3m2", "e5m0", scaled=True, gradients=chain) == ["e4m1", "e5m0", "e3m2"]


@pytest.mark.parametrize(
    ("name", "scaled", "recorded"),
    [
        ("e3m1", True, 0.325),
        ("e4m0", True, 0.359),
        ("e3m0", True, 0.557),
        ("e2m2", True, 0.941),
        ("e1m3", True, 1.0),
        ("e2m1", True, 1.0),
        ("e4m0", False, 0.826),
        ("e3m1", False, 0.999),
        ("e2m2", False, 1.0),
    ],
)
def test_the_predicted_error_of_a_sum_is_near_what_digits_runs_recorded(name, scaled, recorded):
    assert math.sqrt(sum(lost_and_noise(name, DIGITS, scaled=scaled))) == pytest.approx(recorded, abs=0.1)


def test_nothing_is_lost_twice_and_a_value_out_of_range_loses_all():
    assert math.fsum(SHARES) == pytest.approx(1)
    names = [f"e{e}m{m}" for e, m in itertools.product(range(1, 9), range(11))]
    assert all(
        0 <= lost_and_noise(name, DIGITS, scaled=scaled)[0] <= 1 for name in names for scaled in (True, False)
    )
    assert loss("e2m2", Gradients({2: 1, -3: 100}, 7), scaled=False) == math.inf
    assert all(loss(name, DIGITS, scaled=False) == math.inf for name in ("dynamic_tree", "no.such.FORMAT", 7))


def test_without_a_record_and_among_equals_the_order_stays():
    assert tried("e2m1", "e3m0", scaled=True, gradients=None) == ["e2m1", "e3m0"]
    tiny = Gradients({-60: 4}, 7)
    assert tried("e2m1", "e3m0", "e1m2", scaled=False, gradients=tiny) == ["e2m1", "e3m0", "e1m2"]
    assert tried("linear", "e4m3", scaled=False) == ["e4m3", "linear"]


def test_a_damaged_record_counts_for_what_it_holds():
    layers = {"a": {"exponent_max": -6}, "b": {"exponent_max": None}, "c": 7, "d": {"exponent_max": 10**9}}
    rows = [EpochRow(1, layers=layers), EpochRow(2), EpochRow(3, layers={"a": {"exponent_max": True}})]
    assert Gradients.of(rows, 7) == Gradients({-6: 1}, 7)
    assert Gradients.of([EpochRow(1)], 7) is None


def width(*names):
    return tuple(Candidate(name, BASELINE, name, 5) for name in names)


def test_until_the_order_is_known_the_baseline_alone_is_run_for_a_width_of_several():
    chain = Chain("", (width("e4m0", "e3m1"), width("e3m0")), is_ordered=False)
    asks = list(wanted(stand([chain], Ended(), RULES), Ended(), set(), RULES))
    assert asks == [(BASELINE, 0), (BASELINE, 1), (BASELINE, 2)]
    alone = Chain("", (width("e4m3"), width("e4m0", "e3m1")), is_ordered=False)
    asks = list(wanted(stand([alone], Ended(), RULES), Ended(), set(), RULES))
    assert {name for name, _ in asks} == {BASELINE, "e4m3"}


def test_the_next_of_a_width_is_tried_when_the_first_looks_bad_and_not_before():
    chain = Chain("", (width("e4m0", "e3m1", "e2m2"), width("e3m0")))
    ended = Ended({BASELINE: {0: 98.0, 1: 98.1, 2: 98.2}})
    assert {n for n, _ in wanted(stand([chain], ended, RULES), ended, set(), RULES)} == {"e4m0", "e3m0"}
    ended.values["e4m0"] = {0: 10.0, 1: 11.0}
    asks = [ask for ask in wanted(stand([chain], ended, RULES), ended, set(), RULES) if ask[0] != BASELINE]
    assert asks[:4] == [("e4m0", 2), ("e3m1", 0), ("e3m1", 1), ("e3m1", 2)]
    assert not {"e2m2", "e3m0"} & {name for name, _ in asks}
    world = World({"e4m0": -80.0, "e3m1": -70.0, "e2m2": -90.0})
    world.search([chain], slots=1)
    assert [world.pairs(name) for name in ("e4m0", "e3m1", "e2m2", "e3m0")] == [3, 3, 3, 0]
