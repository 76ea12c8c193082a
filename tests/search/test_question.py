"""Experiments as questions: chains, widths, baselines, and what a search refuses."""

import pytest

from cpdrun.config.errors import ConfigError
from cpdrun.search.question import ask
from cpdrun.search.settings import Budget, budget
from cpdrun.sweep import plan


def formats(chain):
    return [[candidate.label.split()[0] for candidate in width] for width in chain.widths]


def test_formats_are_chains_with_and_without_aps_most_bits_first():
    question = ask(["exp=digits_bits", "search.tolerance=1", "search.most_seeds=5"])
    assert [chain.label for chain in question.chains] == ["without APS", "with APS"]
    for chain in question.chains:
        assert formats(chain) == [["e5m2", "e4m3", "e3m4"], ["e4m1", "e3m2"], ["e3m0"]]
    assert question.settings.tolerance == 1 and question.settings.confidence == 95
    assert question.grid == (12 + 1) * 5


def test_all_candidates_share_one_baseline_with_the_same_seeds():
    question = ask(["exp=digits_bits", "search.most_seeds=4"])
    (baseline,) = {c.baseline for chain in question.chains for width in chain.widths for c in width}
    for cell in question.cells.values():
        assert list(cell) == [0, 1, 2, 3]
        assert all(run.config["seed"] == seed for seed, run in cell.items())
    assert question.cells[baseline][3].config["format"] == "fp32"


def test_a_search_and_a_sweep_have_the_same_runs():
    sweep = {run.name for run in plan(["exp=digits_bits"]).runs}
    question = ask(["exp=digits_bits", "search.most_seeds=3", "search.confidence=90"])
    assert {run.name for cell in question.cells.values() for run in cell.values()} == sweep
    run = question.cells[question.chains[0].widths[0][0].name][0]
    assert "search" not in run.config and not any("search" in text for text in run.overrides)


def test_a_baseline_that_no_axis_names_is_planned_beside_them():
    question = ask(["format=e4m3,e3m0", "aps=true", "search.baseline.format=bf16", "search.most_seeds=3"])
    (chain,) = question.chains
    assert chain.label == "with APS" and formats(chain) == [["e4m3"], ["e3m0"]]
    config = question.cells[chain.widths[0][0].baseline][0].config
    assert (config["format"], config["aps"]) == ("bf16", False)


def test_other_axes_make_chains_each_with_a_baseline_of_its_own():
    question = ask(["format=fp32,e4m3", "aps=false", "world_size=4,8", "search.most_seeds=3"])
    assert [chain.label for chain in question.chains] == ["without APS, workers 4", "without APS, workers 8"]
    for chain, workers in zip(question.chains, (4, 8), strict=True):
        assert question.cells[chain.widths[0][0].baseline][0].config["world_size"] == workers


def test_another_axis_that_names_formats_makes_candidates_with_a_baseline_on_it():
    words = ["format=fp32", "search.most_seeds=3"]
    question = ask([*words, "precision.weights=fp32,e4m3,e3m2", "aps=false"])
    (chain,) = question.chains
    assert chain.label == "of weights" and formats(chain) == [["e4m3"], ["e3m2"]]
    assert question.cells[chain.widths[0][0].baseline][0].config["precision"]["weights"] == "fp32"
    assert question.asked["baseline"] == {"precision.weights": "fp32"}
    widest = ask([*words, "precision.weights=e4m3,bf16"])
    assert widest.baseline == {"precision.weights": "bf16"} and formats(widest.chains[0]) == [["e4m3"]]


def test_each_named_case_is_a_chain_against_the_one_named_fp32():
    question = ask(["exp=pure_fp16_ablation_small", "case=fp32,pure", "world_size=8", "search.most_seeds=3"])
    assert [chain.label for chain in question.chains] == ["pure"]
    assert question.cells[question.chains[0].widths[0][0].baseline][0].config["case"] == "fp32"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["exp=digits_bits", "seed=0,1"], "a search draws its seeds"),
        (["exp=digits_bits", "search.tolerence=1"], "did you mean 'search.tolerance'"),
        (["exp=digits_bits", "search.tolerance=0"], "must be a number above 0"),
        (["exp=digits_bits", "search.tolerance=1,2"], "one value of each"),
        (["exp=digits_bits", "search.confidence=100"], "from 50 to below 100"),
        (["exp=digits_bits", "search.most_seeds=2"], "at least 3"),
        (["exp=digits_bits", "search.budget=soon"], "12h, 90min"),
        (["exp=digits_bits", "search.baseline=fp32"], "must say which cell"),
        (["format=fp32"], "no candidate beside the baseline"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(typed, told):
    with pytest.raises(ConfigError, match=told):
        ask(typed)


def test_a_budget_is_runs_or_core_time():
    assert budget(40) == budget("40") == Budget(runs=40)
    assert budget("90min") == Budget(core_hours=1.5) and budget("2h") == Budget(core_hours=2)
    assert budget(None) is None and str(budget("2h")) == "2 core-hours"
