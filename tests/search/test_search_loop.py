"""A search through the launcher's session with an executor that trains nothing: failures, budgets and rounds."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from instant_executor import GAPS, Instant
from rich.console import Console

from cpdrun.cli import main
from cpdrun.config.manifest import read_ledger
from cpdrun.launch import LaunchOptions, Session
from cpdrun.record import SweepDir
from cpdrun.report.search_text import (
    describe_candidates,
    describe_cost,
    describe_results,
    make_table,
    next_step,
    report_command,
)
from cpdrun.search.loop import parallel_runs
from cpdrun.search.plan import forecast_cost
from cpdrun.search.question import ask
from cpdrun.search.results import Results, search_result

TYPED = ["format=fp32,e4m3,e3m2,e3m0,e2m0", "aps=false,true", "search.tolerance=1", "search.most_seeds=16"]
TYPED += ["name=found"]


def answers(results):
    return [ladder.smallest for ladder in search_result(results).chains]


def names(results):
    return sorted(path.name for path in results.question.directory.runs_folder.iterdir())


def test_a_search_finds_the_smallest_format_of_each_ladder(go):
    results, printed, codes = go()
    assert answers(results) == ["e4m3 without APS", "e3m0 with APS"] and codes == [0]
    assert printed.count("✓") == 4 and printed.count("✗") == 2
    assert sum(line.startswith("finished ") for line in printed.splitlines()) == results.runs
    for said in ("  smallest certified e3m0 with APS (4 bits)", "✓ e3m0 with APS is certified "):
        assert said in printed
    assert "  none certified yet  about " in printed and " left" in printed
    assert results.runs == len(names(results)) <= 9 * 16 / 2
    drawn = io.StringIO()
    Console(file=drawn, width=80, force_terminal=False).print(make_table(results))
    assert "…" not in drawn.getvalue()
    for candidate in ("e4m3 without APS", "e3m2 without APS", "e3m0 with APS"):
        assert candidate in drawn.getvalue()


def test_the_sentences_of_searches(go, launch, tmp_path, monkeypatch, snapshot):
    parts = []

    def show(title, results):
        parts.extend([f"## {title}", describe_candidates(results.question), *describe_results(results)])
        parts.extend([*describe_cost(results, forecast_cost(results, 2), 2), next_step(results), ""])

    show("finished", go(folder="finished")[0])
    show("after 4 runs", go(folder="four", budget=4)[0])
    show("after 9 runs", go(folder="nine", budget=9)[0])
    show("at most 3 seeds", go("search.most_seeds=3", folder="few")[0])
    show("a baseline that diverges", go("search.baseline={format: e4m1, aps: false}", folder="diverged")[0])
    question = ask(["exp=hybrid_bits_small", "case=fp32,e3m0,e4m3 but both", "search.tolerance=1"])
    show("cases", launch(question, tmp_path / "cases")[0])
    monkeypatch.setitem(GAPS, ("e3m0", True), -0.6)
    show("a refuted case", launch(question, tmp_path / "refuted")[0])
    Instant.failing = ("e3m0",)
    show("a case that fails", launch(question, tmp_path / "failed")[0])
    snapshot("search", "\n".join(parts).replace(str(tmp_path), "FOLDER"))


def test_the_manifest_lists_the_runs_and_the_question(go):
    results, *_ = go()
    manifest = yaml.safe_load(results.question.directory.manifest.read_text())
    assert sorted(manifest["runs"]) == names(results)
    baseline = {"format": "fp32", "aps": False}
    asked = {"tolerance": 1, "confidence": 95, "metric": None, "baseline": baseline}
    said = manifest["search"]
    assert [(each["bits"], each["aside"]) for each in said.pop("start")] == [(8, None), (8, None)]
    hypotheses = said.pop("ledger")["hypotheses"]
    assert said.pop("expected_runs") >= results.runs - 1
    assert said == asked and len(hypotheses) == 8
    roots = [each["weight"] for each in hypotheses if not each["opened_by"]]
    assert roots == pytest.approx([0.4, 0.4])


def test_the_command_prints_the_answers_and_the_path_of_the_report(go, monkeypatch, capsys):
    results, *_ = go()
    monkeypatch.setattr(Session, "warm_up", lambda self: None)
    monkeypatch.setattr("cpdrun.search.question.ask", lambda *args, **kwargs: results.question)
    words, answers = ["format=e4m3"], describe_results(results)[:-1]  # it is planned already
    assert main(["search", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:5] == answers
    assert lines[-2:] == [describe_results(results)[-1], report_command(results)]
    assert main(["search", *words, "--report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    page = results.question.directory.report / "report.html"
    assert lines[-2] == f"Tables and plots: open {page}"
    assert page.exists() and (page.parent / "accuracy_vs_bits.png").exists()
    page.unlink()
    page.mkdir()  # nothing can be written in its place
    assert main(["search", *words, "--report"]) != 0
    said = capsys.readouterr()
    assert said.out.splitlines()[3:5] == answers and "cannot write" in said.err


def test_a_cluster_gets_rounds_of_runs_that_are_likely_to_be_needed(go):
    results, *_ = go(slots=0)
    assert answers(results) == ["e4m3 without APS", "e3m0 with APS"]
    rounds = [jobs for jobs in Instant.rounds if jobs]
    assert rounds[0] == 3 and 2 < len(rounds) < 16 and sum(rounds) == results.runs


def test_a_budget_ends_a_search(go):
    assert go(budget=9)[0].runs == 9
    assert go(folder="hours", budget="1min")[0].runs == 15  # runs take 4 s


def test_a_failed_run_prevents_a_certificate_and_a_format_that_always_fails_is_given_up(go):
    Instant.failing = ("e4m3-w8",)
    results, _, codes = go()
    assert codes == [1] and answers(results) == [None, "e3m0 with APS"]
    assert "All 2 runs of e4m3 (8 bits) failed." in describe_results(results)[0]
    drawn = io.StringIO()
    Console(file=drawn, width=200).print(make_table(results))
    assert "open, all runs failed" in drawn.getvalue()
    Instant.failing = ("aps-w8-s1",)
    results, _, codes = go(folder="one")
    assert codes == [1] and answers(results) == ["e4m3 without APS", None]
    said = describe_results(results)[1]
    assert "e4m3 (8 bits): " in said and " runs failed (1 for an" in said


def test_a_diverging_baseline_ends_the_search(go):
    results, *_ = go("search.baseline={format: e4m1, aps: false}")
    assert answers(results) == [None, None] and results.runs < 12


def test_a_smaller_loss_is_better(go):
    results, *_ = go("search.metric=test_loss", "search.tolerance=0.01")
    assert answers(results) == ["e4m3 without APS", "e3m0 with APS"]


def test_without_runs_there_is_no_forecast(asked):
    empty = Results(replace(asked(), directory=SweepDir(Path("/nonexistent/found"))))
    assert "once there are two pairs" in describe_cost(empty, forecast_cost(empty, 2), 2)[0]
    assert parallel_runs(empty, {"_target_": "instant_executor.Instant", "slots": 0}, LaunchOptions()) is None


def test_a_question_with_fewer_ladders_gets_no_error_probability_back(go, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Session, "warm_up", lambda self: None)

    def look(*typed):
        """Return the verdicts of one ladder with the error of certifying, and the number of hypotheses."""
        words = [
            *(word for word in TYPED if not word.startswith("aps=")),
            *typed,
            f"results_dir={tmp_path / 'here'}",
        ]
        assert main(["search", *words, "--dry-run", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        (ladder,) = (ladder for ladder in found["chains"] if ladder["chain"] == "with APS")
        verdicts = [(c["verdict"], c["low"], c["error_of_certifying"]) for c in ladder["candidates"]]
        return verdicts, found["hypotheses"]

    go()
    with_both, hypotheses = look("aps=false,true")
    assert hypotheses == 8 and with_both[0][2] == pytest.approx(0.02)
    assert look("aps=true") == (with_both, hypotheses)
    results, *_ = go("aps=true")  # sweep.yaml is written again, and keeps the number
    assert len(read_ledger(results.question.directory).hypotheses) == 8
    assert look("aps=true") == (with_both, hypotheses)
