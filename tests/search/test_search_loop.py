"""A search through the launcher's session, with an executor that trains nothing: kills, failures, budgets, rounds."""

import contextlib
import io
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from instant_executor import GAPS, Instant, PowerCutError
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

TYPED = [
    "format=fp32,e4m3,e3m2,e3m0,e2m0",
    "aps=false,true",
    "search.tolerance=1",
    "search.most_seeds=16",
    "name=found",
]


def answers(results):
    return [ladder.smallest for ladder in search_result(results).chains]


def names(results):
    return sorted(path.name for path in results.question.directory.runs_folder.iterdir())


def test_it_finds_the_smallest_format_of_each_ladder_and_says_so(go):
    results, printed, codes = go()
    assert answers(results) == ["e4m3 without APS", "e3m0 with APS"] and codes == [0]
    plain, aps, took = describe_results(results)
    assert plain.startswith(
        "CERTIFIED: e4m3 (8 bits) without APS is at most 1 point worse than fp32 in the mean "
    )
    assert "Refuted: 6 bits (e3m2 −" in plain
    assert aps.startswith("CERTIFIED: e3m0 (4 bits) with APS is") and "Refuted: 3 bits (e2m0 −" in aps
    assert took.startswith(f"{results.runs} runs; a grid of all 9 cells with ")
    assert printed.count("✓") == 4 and printed.count("✗") == 2
    lines = printed.splitlines()
    assert sum(line.startswith("finished ") for line in lines) == results.runs
    assert (
        "  smallest certified e3m0 with APS (4 bits)" in printed
        and "✓ e3m0 with APS is certified " in printed
    )
    assert "  none certified yet  about " in printed and " left" in printed
    assert results.runs == len(names(results)) <= 9 * 16 / 2


def test_in_eighty_columns_no_name_and_no_figure_is_cut(go):
    results, _, _ = go()
    drawn = io.StringIO()
    Console(file=drawn, width=80, force_terminal=False).print(make_table(results))
    assert "…" not in drawn.getvalue()
    for candidate in ("e4m3 without APS", "e3m2 without APS", "e3m0 with APS"):
        assert candidate in drawn.getvalue()


def test_its_manifest_lists_the_runs_that_were_asked_for_and_no_others(go):
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


def shown(renderable):
    console = Console(file=io.StringIO(), width=200)
    console.print(renderable)
    return console.file.getvalue()


def test_one_pair_is_no_pairs_and_the_candidates_are_named(go):
    results, *_ = go(budget=4)
    assert " after 1 pair, too noisy to say yet" in " ".join(describe_results(results))
    assert describe_candidates(results.question) == (
        "8 candidates: without APS e4m3, e3m2, e3m0, e2m0; with APS the same"
    )


def test_typed_again_it_has_nothing_to_do_and_says_the_same(go):
    first, *_ = go()
    again, _, codes = go()
    assert describe_results(again) == describe_results(first) and codes == []
    assert report_command(again).endswith("/here/found")


def test_the_command_says_the_answers_first_and_where_the_report_is(go, monkeypatch, capsys):
    results, *_ = go()
    monkeypatch.setattr(Session, "warm_up", lambda self: None)
    monkeypatch.setattr("cpdrun.search.question.ask", lambda *args, **kwargs: results.question)
    words, answers = ["format=e4m3"], describe_results(results)[:-1]  # it is planned already
    assert main(["search", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[i] for i in range(3, 5)] == answers and lines[-2:] == [
        describe_results(results)[-1],
        report_command(results),
    ]
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


def test_twenty_power_cuts_change_neither_the_verdict_nor_the_runs(go):
    undisturbed, *_ = go(folder="undisturbed", slots=1)
    rng, cuts = random.Random(4), 0
    while cuts < 20:
        Instant.cut_after = rng.randrange(0, 5)
        try:
            go(slots=1)
        except PowerCutError:
            cuts += 1
        else:
            break
    Instant.cut_after = math.inf
    results, *_ = go(slots=1)
    assert cuts == 20
    assert describe_results(results) == describe_results(undisturbed)
    assert [run.name for run in results.question.directory.runs() if run.done.exists()] == names(undisturbed)


def test_the_formats_of_a_width_keep_their_order_however_often_the_power_goes(go):
    widths = ("format=fp32,e5m0,e3m2", "aps=true", "search.most_seeds=12")
    undisturbed, *_ = go(*widths, folder="undisturbed", slots=1)
    ran = names(undisturbed)
    assert answers(undisturbed) == ["e5m0 with APS"] and not any("e3m2" in name for name in ran)
    rng = random.Random(5)
    for _ in range(6):
        Instant.cut_after = rng.randrange(0, 3)
        with contextlib.suppress(PowerCutError):
            go(*widths, slots=1)
    Instant.cut_after = math.inf
    results, *_ = go(*widths, slots=1)
    assert [run.name for run in results.question.directory.runs() if run.done.exists()] == ran
    assert describe_results(results) == describe_results(undisturbed)


def test_a_cluster_gets_rounds_of_what_is_likely_to_be_needed(go):
    results, *_ = go(slots=0)
    assert answers(results) == ["e4m3 without APS", "e3m0 with APS"]
    rounds = [jobs for jobs in Instant.rounds if jobs]
    assert rounds[0] == 3 and 2 < len(rounds) < 16 and sum(rounds) == results.runs


def test_the_next_command_asks_for_more_seeds_if_all_are_used(go):
    results, *_ = go("search.most_seeds=3")
    told = next_step(results)
    assert told.startswith("To continue with more seeds: cpdrun search ")
    assert told.endswith(" search.most_seeds=6") and "search.most_seeds=3" not in told


def test_a_budget_ends_it_and_what_is_open_is_said(go):
    results, *_ = go(budget=9)
    assert results.runs == 9
    assert describe_results(results)[1].startswith(
        "OPEN: no format with APS is certified to be at most 1 point"
    )
    assert "Most likely " in describe_results(results)[1] and "more pair" in describe_results(results)[1]
    assert next_step(results).startswith("To continue: cpdrun search format=fp32,e4m3,e3m2,e3m0,e2m0 ")
    hours, *_ = go(folder="hours", budget="1min")
    assert hours.runs == 15  # of 4 s


def test_a_format_with_a_failed_run_is_not_certified_and_one_that_always_fails_is_given_up(go):
    Instant.failing = ("e4m3-w8",)
    results, _, codes = go()
    assert codes == [1] and answers(results) == [None, "e3m0 with APS"]
    assert "All 2 runs of e4m3 (8 bits) failed." in describe_results(results)[0]
    assert "open, all runs failed" in shown(make_table(results))
    Instant.failing = ("aps-w8-s1",)
    results, _, codes = go(folder="one")
    assert codes == [1] and answers(results) == ["e4m3 without APS", None]
    assert (
        "e4m3 (8 bits): " in describe_results(results)[1]
        and " runs failed (1 for an" in describe_results(results)[1]
    )


def test_a_baseline_that_diverges_is_nothing_to_compare_with(go):
    results, *_ = go("search.baseline={format: e4m1, aps: false}")
    assert answers(results) == [None, None] and results.runs < 12
    assert "NO ANSWER without APS: the baseline itself diverged in" in describe_results(results)[0]


def test_a_case_is_spoken_of_by_its_name_not_by_its_bits(launch, tmp_path, monkeypatch):
    question = ask(["exp=hybrid_bits_small", "case=fp32,e3m0,e4m3 but both", "search.tolerance=1"])
    results, *_ = launch(question, tmp_path / "found")
    one, other, _ = describe_results(results)
    assert one.startswith(
        "CERTIFIED: e3m0 (4 bits) is at most 1 point worse than fp32 in the mean over seeds, with 95 % confidence: +"
    )
    assert one.endswith(" 0 of 4 runs failed (with 95 % confidence at most 53 % fail).")
    assert other.startswith("CERTIFIED: e4m3 but both (8 bits) is at most ")
    monkeypatch.setitem(GAPS, ("e3m0", True), -0.6)
    refuted, *_ = launch(question, tmp_path / "refuted")
    assert re.match(
        r"REFUTED: e3m0 \(4 bits\) is more than 1 point worse than fp32: e3m0 \(4 bits\): −(59|60)\S* points "
        r"\[.*\] after \d pairs\.",
        describe_results(refuted)[0],
    )
    Instant.failing = ("e3m0",)
    failed, *_ = launch(question, tmp_path / "failed")
    assert describe_results(failed)[0] == (
        "OPEN: e3m0 (4 bits) is not certified to be at most 1 point worse than fp32. All 2 runs of e3m0 (4 bits) "
        "failed."
    )


def test_loss_is_compared_the_other_way_round(go):
    results, *_ = go("search.metric=test_loss", "search.tolerance=0.01")
    assert answers(results) == ["e4m3 without APS", "e3m0 with APS"]


def test_a_forecast_tells_the_noise_and_the_cost(go, asked):
    results, *_ = go(budget=12)
    lines = "\n".join(describe_cost(results, forecast_cost(results, 2), 2))
    assert "Noise: the standard deviation of a paired difference is 0." in lines and "after about" in lines
    assert " with 2 at a time" in lines
    empty = Results(replace(asked(), directory=SweepDir(Path("/nonexistent/found"))))
    assert "once there are two pairs" in describe_cost(empty, forecast_cost(empty, 2), 2)[0]
    assert parallel_runs(empty, {"_target_": "instant_executor.Instant", "slots": 0}, LaunchOptions()) is None


def test_a_question_typed_again_with_fewer_ladders_gets_no_error_probability_back(
    go, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(Session, "warm_up", lambda self: None)

    def look(*typed):
        """What the command says of one ladder, and at which error it would certify."""
        words = [
            *(word for word in TYPED if not word.startswith("aps=")),
            *typed,
            f"results_dir={tmp_path / 'here'}",
        ]
        assert main(["search", *words, "--dry-run", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        (ladder,) = (ladder for ladder in found["chains"] if ladder["chain"] == "with APS")
        return [(c["verdict"], c["low"], c["error_of_certifying"]) for c in ladder["candidates"]], found[
            "hypotheses"
        ]

    go()
    with_both, hypotheses = look("aps=false,true")
    assert hypotheses == 8 and with_both[0][2] == pytest.approx(0.02)
    assert look("aps=true") == (with_both, hypotheses)
    results, *_ = go("aps=true")  # sweep.yaml is written again, and keeps the number
    assert len(read_ledger(results.question.directory).hypotheses) == 8
    assert look("aps=true") == (with_both, hypotheses)
