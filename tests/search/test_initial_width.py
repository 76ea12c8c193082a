"""The width at which a ladder starts: the claims made from there, and their error probability."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import yaml
from made_up_world import BASELINE, RULES, World, ladder
from verdicts import reported, told

from cpdrun.config.errors import ConfigError
from cpdrun.report.search_text import describe_results
from cpdrun.report.study_text import question_notes
from cpdrun.search.initial_width import predicted_width, start_at
from cpdrun.search.ladders import ladder_states
from cpdrun.search.question import ask
from cpdrun.search.results import search_result
from cpdrun.search.schedule import wanted_runs
from cpdrun.stats.ended_runs import EndedRuns
from cpdrun.stats.evidence import Verdict
from cpdrun.stats.ladder import settle
from cpdrun.stats.ledger import START_SHARE, AskedLadder, Ledger
from cpdrun.study.reader import read_study

TYPED = ["format=fp32,e4m3,e3m2,e3m0,e2m0", "aps=true", "search.tolerance=1", "name=found"]
LADDER = ladder("with APS", ["e4m3"], ["e3m2"], ["e3m1"], ["e3m0"], ["e2m0"])
GAPS = {"e2m0": -88.0}


def of(standing):
    return {candidate.name: width.verdict_of(judgment) for candidate, judgment, width in standing}


def asked(widths, start):
    (found,) = Ledger().ask("accuracy", [AskedLadder("fp32", [[f"{i}"] for i in range(widths)], start)])
    return found


def weights(widths, start):
    return [hypothesis.weight for (hypothesis,) in asked(widths, start)]


def test_the_claims_of_a_ladder_share_no_more_than_the_error():
    for widths, start in ((n, i) for n in range(1, 9) for i in range(n)):
        found = [Fraction(each) / Fraction(weights(widths, 0)[0]) for each in weights(widths, start)]
        assert len(found) == widths and sum(found[: start + 1]) <= 1
        assert {round(float(each), 9) for each in found[start:]} == {START_SHARE if start else 1.0}
        assert all(wider < narrower for wider, narrower in itertools.pairwise(found[: start + 1]))


def test_evidence_may_certify_at_the_whole_error_but_not_at_a_share_of_it():
    gaps = [0.2, -0.3, 0.35, 0.0, -0.1, 0.25]
    at = [
        settle([[gaps]] * 4, 0.62, asked(4, start), alpha=0.05, barred=[[False]] * 4, start=start)
        for start in range(4)
    ]
    whole, *_ = at
    assert [width.certified for width in whole] == [0, 0, 0, 0]
    shares = [[width.judgments[0].errors[0] for width in widths] for widths in at]
    assert shares[3][0] < shares[3][1] < shares[3][2] < shares[3][3] < shares[0][0]
    assert [width.is_reached for width in at[2]] == [True, True, True, at[2][2].certified is not None]


@pytest.mark.parametrize("slots", [1, 2, 6])
def test_a_search_that_starts_at_the_answer_runs_no_wider_format(slots):
    world = World(GAPS)
    (standing,) = world.search([start_at(LADDER, 3, 0)], slots=slots)
    assert standing.answer[0].name == "e3m0" and of(standing)["e2m0"] is Verdict.REFUTED
    assert standing.active is None and not any(map(world.pairs, ["e4m3", "e3m2", "e3m1"]))
    assert of(standing)["e4m3"] is Verdict.OPEN
    from_the_widest = World(GAPS)
    from_the_widest.search([LADDER], slots=slots)
    assert len(world.ran) < 0.7 * len(from_the_widest.ran)


def test_from_a_wrong_start_a_search_moves_one_width_at_a_time():
    for start, ran in ((1, {"e3m2", "e3m1", "e3m0", "e2m0"}), (4, {"e3m0", "e2m0"})):
        world = World(GAPS)
        (standing,) = world.search([start_at(LADDER, start, None)], slots=1)
        assert standing.answer[0].name == "e3m0" and {name for name, _ in world.ran} == {BASELINE, *ran}
    broken = World(dict.fromkeys(("e3m2", "e3m1", "e3m0", "e2m0"), -88.0))
    (standing,) = broken.search([start_at(LADDER, 4, None)], slots=1)
    assert standing.answer[0].name == "e4m3" and all(broken.pairs(c[0].name) <= 3 for c in LADDER.widths[1:])
    assert standing.active is None
    hopeless = World(dict.fromkeys(("e4m3", "e3m2", "e3m1", "e3m0", "e2m0"), -88.0))
    (standing,) = hopeless.search([start_at(LADDER, 2, None)], slots=1)
    assert standing.answer is None and standing.active is None and hopeless.pairs("e3m0") == 0


def test_from_an_open_start_a_search_moves_to_wider_formats():
    world = World({**GAPS, "e3m0": -1.0})  # at the boundary
    (standing,) = world.search([start_at(LADDER, 3, 0)], slots=1)
    assert standing.answer[0].name == "e3m1" and of(standing)["e3m0"] is Verdict.OPEN
    assert world.pairs("e3m0") == RULES.most_seeds - 1  # all but the seed aside


def test_the_seed_of_the_prediction_is_in_no_pair():
    world = World({})
    world.search([start_at(LADDER, 3, 0)], slots=1)
    assert not any(seed == 0 for name, seed in world.ran if name != BASELINE)
    values = {
        name: {seed: 98.0 + 0.01 * seed * i for seed in range(6)} for i, name in enumerate((BASELINE, "e3m0"))
    }
    (with_it,) = ladder_states([LADDER], EndedRuns(values), RULES)
    (without,) = ladder_states([start_at(LADDER, 3, 2)], EndedRuns(values), RULES)
    assert (with_it.widths[3].judgments[0].pairs, without.widths[3].judgments[0].pairs) == (6, 5)
    assert without.widths[3].judgments[0].mean == pytest.approx(0.01 * (0 + 1 + 3 + 4 + 5) / 5)


def test_until_the_start_is_known_only_the_baseline_runs():
    waiting = replace(LADDER, is_started=False)
    standings = ladder_states([waiting], EndedRuns(), RULES)
    assert {name for name, _ in wanted_runs(standings, EndedRuns(), set(), RULES)} == {BASELINE}


def test_the_predicted_width_is_the_narrowest_that_probably_suffices():
    def predicted(*chances):
        widths = [tuple(replace(LADDER.widths[0][0], chance=c) for c in width) for width in chances]
        return predicted_width(replace(LADDER, widths=tuple(widths)))

    assert predicted([0.1], [0.9, 0.4], [0.6, 0.7]) == 1
    assert predicted([0.1], [0.6], [0.5]) == 2  # a width between says nothing of it
    assert predicted([0.6], [0.7]) == predicted([0.1], [None, 0.1]) == 0


def formats_run(results):
    runs = [run.name for run in results.question.directory.runs() if run.done.exists()]
    return {name.split("-")[1] for name in runs}


def test_a_search_starts_at_the_predicted_width_and_its_report_agrees(predictions, go):
    results, *_ = go()
    assert formats_run(results) == {"fp32", "e3m0", "e2m0"}
    said = describe_results(results)[0]
    assert said.startswith("CERTIFIED: e3m0 (4 bits)") and "Refuted: 3 bits" in said
    predicted = "The search started at 4 bits, as predicted from the first run of fp32"
    assert said.endswith(f"{predicted}; 8 and 6 bits were not tested.")
    assert [ladder.started_at for ladder in search_result(results).chains].count(4)
    assert reported(results) == told(results)
    notes = " ".join(question_notes(read_study([results.question.directory])))
    assert "with APS: the search started at 4 bits, as predicted from the first run of fp32." in notes
    assert "Seed 0 is in no pair, because the prediction used its run." in notes


def test_a_search_without_a_prediction_says_so_once(go):
    results, printed, _ = go(slots=1)  # these runs record no observation
    assert results.ladders[0].start == 0
    assert printed.count("no prediction is available") == 1
    assert "With APS: no prediction is available, so the search starts at 8 bits." in printed


def test_a_wrong_prediction_costs_only_runs(predictions, go, monkeypatch):
    monkeypatch.setattr("instant_executor.GAPS", {("e3m0", True): -0.3, ("e2m0", True): math.nan})
    results, *_ = go()
    said = describe_results(results)[0]
    assert said.startswith("CERTIFIED: e3m2 (6 bits)") and "Refuted: 4 bits" in said
    assert said.endswith("as predicted from the first run of fp32; 8 bits were not tested.")
    assert reported(results) == told(results)


def test_the_start_does_not_change_with_later_predictions(predictions, go):
    go(slots=1, budget=4)
    predictions.update(dict.fromkeys(predictions, 0.99))  # of another model
    results, *_ = go(slots=1)
    assert formats_run(results) == {"fp32", "e3m0", "e2m0"}
    (started,) = yaml.safe_load(results.question.directory.manifest.read_text())["search"]["start"]
    assert (started["bits"], started["aside"]) == (4, 0)
    other, *_ = go("search.tolerance=2", slots=1)  # another question has its own start
    assert other.ladders[0].start == 0


def test_a_search_that_started_at_the_widest_width_continues_there(predictions, go):
    results, *_ = go("search.start=widest", slots=1)
    assert formats_run(results) == {"fp32", "e4m3", "e3m2", "e3m0", "e2m0"}
    assert "It started" not in describe_results(results)[0]
    assert "start" not in yaml.safe_load(results.question.directory.manifest.read_text())["search"]
    again, *_ = go(slots=1)
    assert describe_results(again) == describe_results(results) and again.ladders[0].start == 0
    typed, *_ = go("search.start=predicted", slots=1)
    assert typed.ladders[0].start == 2 and typed.ladders[0].aside == 0
    fewest, *_ = go("search.most_seeds=3", folder="fewest", slots=1)
    assert fewest.ladders[0].start == 0


def test_an_unknown_start_is_refused():
    with pytest.raises(ConfigError, match=r"search.start=narrowest: must be predicted or widest"):
        ask([*TYPED, "search.start=narrowest"])
