"""`cpdrun search --plan` lists what a search would ask for, with its time and how sure its candidates stand."""

import json
from dataclasses import replace

import pytest

from cpdrun.cli import main
from cpdrun.record import SweepDir
from cpdrun.report.search_text import describe_plan
from cpdrun.search.loop import RunQueue
from cpdrun.search.plan import confidence_so_far, plan_runs
from cpdrun.search.results import Results
from cpdrun.search.settings import budget

TYPED = ("exp=digits_bits", "format=fp32,e4m3,e3m0", "aps=true", "search.tolerance=1", "search.start=widest")


@pytest.fixture
def after(launch, asked, tmp_path):
    """The results of a search that had so many runs."""

    def after(runs):
        question = asked()
        if runs:
            limited = replace(question.settings, budget=budget(runs))
            launch(replace(question, settings=limited), tmp_path)
        return Results(replace(question, directory=SweepDir(tmp_path)))

    return after


@pytest.mark.parametrize("runs", [0, 1, 4, 8])
def test_it_lists_what_the_search_asks_for(after, runs):
    results = after(runs)
    found = plan_runs(results, None, [])
    key_of = {run.name: (cell, seed) for cell, runs in results.cells.items() for seed, run in runs.items()}
    assert [key_of[run.run] for run in found.runs] == RunQueue(results).wanted(None, ahead=True)
    needed = [key_of[run.run] for run in found.runs if not run.ahead]
    assert needed == RunQueue(results).wanted(None, ahead=False)
    assert all(run.fits is None and run.candidates for run in found.runs)
    assert len({run.run for run in found.runs}) == len(found.runs) > 0


def test_before_a_first_run_no_time_is_known(after):
    results = after(0)
    found = plan_runs(results, budget("2h"), [])
    assert all(run.seconds is None and run.fits is None for run in found.runs)
    assert any("is not known yet" in line for line in describe_plan(results, found))


def test_time_is_that_of_the_cell_and_the_budget_cuts_in_order(after):
    results = after(4)
    found = plan_runs(results, None, [])
    assert {run.seconds_of for run in found.runs} <= {"runs of this cell", "other runs of the sweep"}
    spent = [run.core_seconds for run in found.runs]
    assert all(seconds > 0 for seconds in spent)
    limit = replace(budget("1h"), core_hours=(spent[0] + spent[1] * 1.5) / 3600)
    fits = [run.fits for run in plan_runs(results, limit, []).runs]
    assert fits == [True, True, *[False] * (len(fits) - 2)]
    assert [run.fits for run in plan_runs(results, budget("3"), []).runs] == [
        True,
        True,
        True,
        *[False] * (len(fits) - 3),
    ]


def test_how_sure_it_stands_grows_to_the_confidence(after):
    results = after(30)
    for standing in results.states():
        for _candidate, judgement, _ in standing:
            certified, refuted = confidence_so_far(results, judgement)
            assert (certified >= 95) == (str(judgement.verdict) == "certified")
            assert (refuted >= 95) == (str(judgement.verdict) == "refuted")


def test_the_command_counts_the_runs_that_are_there(after):
    results = after(4)
    plan = plan_runs(results, budget(2), ["exp=digits_bits"])
    assert plan.fit == 2 and plan.command == "cpdrun search exp=digits_bits --budget 6"
    labels = {label for run in plan.runs for label in run.candidates}
    assert {row.candidate for row in plan.candidates} == labels


def test_pairs_are_counted_where_both_sides_have_run(after):
    (first, *_) = plan_runs(after(4), budget(2), []).candidates
    assert first.pairs_after == first.pairs + 1


def test_it_starts_nothing_and_tells_a_mistake(capsys, tmp_path):
    words = ["search", "--plan", *TYPED, f"results_dir={tmp_path}", "--json"]
    assert main([*words, "--budget", "soon"]) == 2
    assert "must be a number of runs, or core time" in json.loads(capsys.readouterr().out)["lines"][0]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "cpdrun.next/1"
    assert list(tmp_path.iterdir()) == []
