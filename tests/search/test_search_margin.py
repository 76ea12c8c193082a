"""The margin of a search: typed, the experiment's, or relative. It is refused as soon as it is known to be too wide."""

import io

import pytest
from instant_executor import Instant
from rich.console import Console

from cpdrun.cli import main
from cpdrun.report.search_text import describe_results, make_table
from cpdrun.search.results import search_result

TYPED = ["format=fp32,e4m3,e3m0", "aps=true", "search.most_seeds=8", "name=found"]
LOSS = "search.metric=test_loss"  # about 0.02 at the end; a guess among 10 classes has 2.3


def test_a_percentage_is_of_the_first_baseline_run(go):
    results, *_ = go(LOSS, "search.tolerance=50%")
    first = results.ended.values[results.question.ladders[0].baseline][0]
    assert 0.48 * first < results.tolerance <= 0.5 * first
    assert search_result(results).margin_origin == f"50% of fp32's final value {first:.4g}, typed"
    assert "CERTIFIED" in " ".join(describe_results(results))


def test_a_margin_that_is_too_wide_stops_the_search_after_the_first_runs(go):
    results, *_ = go(LOSS, "search.tolerance=2")
    assert results.runs <= 2 and set(results.ended.values) == {results.question.ladders[0].baseline}
    told = "no verdict is possible without a valid margin. The margin 2 is more than half of fp32's own improvement"
    assert describe_results(results)[0].startswith(f"OPEN with APS: {told}")
    drawn = io.StringIO()
    Console(file=drawn, width=120).print(make_table(results))
    assert "✓" not in drawn.getvalue()


def test_a_dry_run_describes_the_margin(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["search", "exp=digits_bits", *TYPED, LOSS, "search.tolerance=2%", "--dry-run"]) == 0
    said = "Margin: 2% of fp32's final value or of its improvement, whichever is smaller (typed; known when"
    assert said in capsys.readouterr().out


def test_a_known_margin_that_is_too_wide_starts_nothing(go, capsys):
    results, *_ = go(LOSS, "search.tolerance=2")
    before = len(Instant.rounds)
    assert before
    folder = results.question.directory.path
    typed = [*results.question.typed, f"results_dir={folder.parent}"]
    assert main(["search", *typed]) == 2
    said = capsys.readouterr()
    assert "error: search.tolerance: the margin 2 is more than half of fp32's own improvement" in said.err
    assert "Nothing was started" in said.err and len(Instant.rounds) == before


@pytest.mark.parametrize("typed", ["2 points", "-1%", "x"])
def test_invalid_margins_are_refused(typed, capsys):
    assert main(["search", "exp=digits_bits", f"search.tolerance='{typed}'"]) == 2
    assert "must be a number above 0, such as 0.002, or a percentage, such as 2%" in capsys.readouterr().err
