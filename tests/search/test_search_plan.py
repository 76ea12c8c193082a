"""`cpdrun search --plan` lists the next runs with their time, and how certain each candidate is."""

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
    """after(n) -> the results of a search after n runs."""

    def after(runs):
        question = asked()
        if runs:
            limited = replace(question.settings, budget=budget(runs))
            launch(replace(question, settings=limited), tmp_path)
        return Results(replace(question, directory=SweepDir(tmp_path)))

    return after


@pytest.mark.parametrize("runs", [0, 1, 4, 8])
def test_the_plan_lists_the_runs_that_the_search_wants(after, runs):
    results = after(runs)
    found = plan_runs(results, None, [])
    key_of = {run.name: (cell, seed) for cell, runs in results.cells.items() for seed, run in runs.items()}
    assert [key_of[run.run] for run in found.runs] == RunQueue(results).wanted(None, ahead=True)
    needed = [key_of[run.run] for run in found.runs if not run.ahead]
    assert needed == RunQueue(results).wanted(None, ahead=False)
    assert all(run.fits is None and run.candidates for run in found.runs)
    assert len({run.run for run in found.runs}) == len(found.runs) > 0


def test_without_runs_no_time_is_known(after):
    results = after(0)
    found = plan_runs(results, budget("2h"), [])
    assert all(run.seconds is None and run.fits is None for run in found.runs)
    assert any("is not known yet" in line for line in describe_plan(results, found))


def test_times_come_from_finished_runs_and_the_budget_limits_the_list(after):
    results = after(4)
    found = plan_runs(results, None, [])
    assert {run.seconds_of for run in found.runs} <= {"runs of this cell", "other runs of the sweep"}
    spent = [run.core_seconds for run in found.runs]
    assert all(seconds > 0 for seconds in spent)
    limit = replace(budget("1h"), core_hours=(spent[0] + spent[1] * 1.5) / 3600)
    fits = [run.fits for run in plan_runs(results, limit, []).runs]
    assert fits == [True, True, *[False] * (len(fits) - 2)]
    fits_3 = [run.fits for run in plan_runs(results, budget("3"), []).runs]
    assert fits_3 == [*[True] * 3, *[False] * (len(fits) - 3)]


def test_the_confidence_so_far_reaches_the_level_with_the_verdict(after):
    results = after(30)
    for standing in results.states():
        for _candidate, judgment, _ in standing:
            certified, refuted = confidence_so_far(results, judgment)
            assert (certified >= 95) == (str(judgment.verdict) == "certified")
            assert (refuted >= 95) == (str(judgment.verdict) == "refuted")


def test_the_command_and_the_pairs_after_the_plan_count_finished_runs(after):
    plan = plan_runs(after(4), budget(2), ["exp=digits_bits"])
    assert plan.fit == 2 and plan.command == "cpdrun search exp=digits_bits --budget 6"
    labels = {label for run in plan.runs for label in run.candidates}
    assert {row.candidate for row in plan.candidates} == labels
    assert plan.candidates[0].pairs_after == plan.candidates[0].pairs + 1


def test_the_command_starts_nothing_and_reports_mistakes(capsys, tmp_path):
    words = ["search", "--plan", *TYPED, f"results_dir={tmp_path}", "--json"]
    assert main([*words, "--budget", "soon"]) == 2
    assert "must be a number of runs, or core time" in json.loads(capsys.readouterr().out)["lines"][0]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "cpdrun.next/1"
    assert list(tmp_path.iterdir()) == []
