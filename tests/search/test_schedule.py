"""Which runs a search asks for, in a made-up world: it finds the answer with few runs and repeats none."""

import math

import pytest
from made_up_world import BASELINE, RULES, World, ladder

from cpdrun.search.ladders import ladder_states
from cpdrun.search.schedule import wanted_runs
from cpdrun.stats.ended_runs import EndedRuns
from cpdrun.stats.evidence import Verdict
from cpdrun.stats.failures import Failure

APS = ladder("with APS", ["e4m3"], ["e3m2"], ["e3m0"], ["e2m0"])
PLAIN = ladder("without APS", ["plain e5m2"], ["plain e3m2"], ["plain e3m0"])
GAPS = {"e3m0": -0.2, "e2m0": -88, "plain e3m2": -60, "plain e3m0": math.nan}


def answers(standings):
    return [standing.answer and standing.answer[0].name for standing in standings]


def verdicts(standing):
    return {candidate.name: judgment.verdict for candidate, judgment, _ in standing}


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_the_smallest_format_is_found_with_a_fraction_of_the_grid(slots):
    world = World(GAPS)
    standings = world.search([PLAIN, APS], slots=slots)
    assert answers(standings) == ["plain e5m2", "e3m0"]
    assert verdicts(standings[1])["e2m0"] is verdicts(standings[0])["plain e3m2"] is Verdict.REFUTED
    assert len(set(world.ran)) == len(world.ran) <= 8 * 30 / (4 if slots < 16 else 3)
    if (
        slots == 1
    ):  # a broken format takes three pairs, nothing below it is tried, and the baseline runs once per seed
        assert world.pairs("plain e3m2") == world.pairs("e2m0") == 3 and world.pairs("plain e3m0") == 0
        most = max(world.pairs(name) for name in ("e4m3", "e3m2", "e3m0", "plain e5m2"))
        assert world.pairs(BASELINE) == most


def test_the_second_format_of_a_width_runs_only_if_the_first_is_refuted():
    good_first = World({"e4m3": -50.0})
    good_first.search([ladder("", ["e5m2", "e4m3"], ["e3m0"])], slots=1)
    assert good_first.pairs("e4m3") == 0
    bad_first = World({"e5m2": -50.0})
    (standing,) = bad_first.search([ladder("", ["e5m2", "e4m3"], ["e3m0"])], slots=1)
    assert bad_first.pairs("e5m2") == 3 and standing.answer[0].name == "e3m0"


def test_a_format_at_the_boundary_stays_open_and_ends_the_ladder():
    world = World({"e3m2": -1.0})  # at the boundary
    (standing,) = world.search([APS], slots=2)
    assert standing.answer[0].name == "e4m3" and verdicts(standing)["e3m2"] is Verdict.OPEN
    assert world.pairs("e3m2") == RULES.most_seeds and world.pairs("e3m0") <= 3
    assert standing.active is None


@pytest.mark.parametrize("stop_after", range(0, 60, 14))
def test_a_stopped_search_continues_with_the_same_runs_and_verdicts(stop_after):
    undisturbed = World(GAPS)
    expected = undisturbed.search([PLAIN, APS], slots=1)
    world, ended = World(GAPS), EndedRuns()
    world.search([PLAIN, APS], slots=1, ended=ended, most=stop_after)
    standings = world.search([PLAIN, APS], slots=1, ended=ended)
    assert set(world.ran) == set(undisturbed.ran) and len(world.ran) == len(undisturbed.ran)
    assert [verdicts(standing) for standing in standings] == [verdicts(standing) for standing in expected]


def test_pairs_count_in_the_order_of_their_seeds():
    ended = EndedRuns({BASELINE: {0: 98.0, 1: 98.0, 2: 98.2}, "e4m3": {1: math.nan, 2: math.nan}})
    (standing,) = ladder_states([APS], ended, RULES)
    assert standing.widths[0].judgments[0].pairs == 0
    assert next(wanted_runs([standing], ended, set(), RULES)) == ("e4m3", 0)


def test_failed_runs_are_skipped_and_a_cell_that_always_fails_is_given_up():
    ended = EndedRuns(failures={"e4m3": {0: Failure.UNKNOWN}})
    (standing,) = ladder_states([APS], ended, RULES)
    asks = list(wanted_runs([standing], ended, {(BASELINE, 0)}, RULES, ahead=False))
    assert asks[:4] == [(BASELINE, 1), ("e4m3", 1), (BASELINE, 2), ("e4m3", 2)]
    ended.given_up.add("e4m3")
    (standing,) = ladder_states([APS], ended, RULES)
    assert standing.active is None and not list(wanted_runs([standing], ended, set(), RULES))


def test_ladders_take_turns_and_a_round_has_only_runs_that_are_likely_to_be_needed():
    standings = ladder_states([PLAIN, APS], EndedRuns(), RULES)
    asks = list(wanted_runs(standings, EndedRuns(), set(), RULES, ahead=False))
    assert asks[:5] == [(BASELINE, 0), ("plain e5m2", 0), ("e4m3", 0), (BASELINE, 1), ("plain e5m2", 1)]
    assert len(asks) == 9  # three pairs of each ladder
    assert len(list(wanted_runs(standings, EndedRuns(), set(), RULES))) == 15  # with all cores in the world
