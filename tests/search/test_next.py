"""`cpdrun search --plan` lists what a search would ask for, with its time and how sure its candidates stand."""

import json
from dataclasses import replace

import pytest

from cpdrun.cli import main
from cpdrun.record import SweepDir
from cpdrun.search.loop import Driver
from cpdrun.search.plan import OTHERS, OWN, candidate_facts, facts, look, says, sure
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
    found = look(results, None)
    assert [run.ask for run in found.runs] == Driver(results).asks(None, ahead=True)
    needed = [run.ask for run in found.runs if not run.is_ahead]
    assert needed == Driver(results).asks(None, ahead=False)
    assert all(run.fits is None and run.candidates for run in found.runs)
    assert len({run.name for run in found.runs}) == len(found.runs) > 0


def test_before_a_first_run_no_time_is_known(after):
    found = look(after(0), budget("2h"))
    assert all(run.seconds is None and run.fits is None for run in found.runs)
    assert any("is not known" in line for line in says(found))


def test_time_is_that_of_the_cell_and_the_budget_cuts_in_order(after):
    results = after(4)
    found = look(results, None)
    assert {run.seconds_of for run in found.runs} <= {OWN, OTHERS}
    spent = [run.core_seconds for run in found.runs]
    assert all(seconds > 0 for seconds in spent)
    limit = replace(budget("1h"), core_hours=(spent[0] + spent[1] * 1.5) / 3600)
    fits = [run.fits for run in look(results, limit).runs]
    assert fits == [True, True, *[False] * (len(fits) - 2)]
    assert [run.fits for run in look(results, budget("3")).runs] == [
        True,
        True,
        True,
        *[False] * (len(fits) - 3),
    ]


def test_how_sure_it_stands_grows_to_the_confidence(after):
    results = after(30)
    for standing in results.standings():
        for _candidate, judgement, _ in standing:
            certified, refuted = sure(results, judgement)
            assert (certified >= 95) == (str(judgement.verdict) == "certified")
            assert (refuted >= 95) == (str(judgement.verdict) == "refuted")


def test_the_command_counts_the_runs_that_are_there(after):
    results = after(4)
    told = facts(look(results, budget(2)), ["exp=digits_bits"])
    assert told["fit"] == 2 and told["command"] == "cpdrun search exp=digits_bits --budget 6"
    assert {row["candidate"] for row in told["candidates"]} == {
        label for run in told["runs"] for label in run["candidates"]
    }


def test_pairs_are_counted_where_both_sides_have_run(after):
    found = look(after(4), budget(2))
    (first, *_) = candidate_facts(found)
    assert first["pairs_after"] == first["pairs"] + 1


def test_it_starts_nothing_and_tells_a_mistake(capsys, tmp_path):
    words = ["search", "--plan", *TYPED, f"results_dir={tmp_path}", "--json"]
    assert main([*words, "--budget", "soon"]) == 2
    assert "must be a number of runs, or core time" in json.loads(capsys.readouterr().out)["lines"][0]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "cpdrun.next/1"
    assert list(tmp_path.iterdir()) == []
