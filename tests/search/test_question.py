"""Experiments as questions: ladders, widths, baselines, and questions that a search refuses."""

import pytest

from cpdrun.config.errors import ConfigError
from cpdrun.search.question import ask
from cpdrun.search.settings import Budget, budget
from cpdrun.sweep import plan


def formats(ladder):
    return [[candidate.label.split()[0] for candidate in width] for width in ladder.widths]


def test_formats_are_ladders_with_and_without_aps_most_bits_first():
    question = ask(["exp=digits_bits", "search.tolerance=1", "search.most_seeds=5"])
    assert [ladder.label for ladder in question.ladders] == ["without APS", "with APS"]
    for ladder in question.ladders:
        assert formats(ladder) == [["e5m2", "e4m3", "e3m4"], ["e4m1", "e3m2"], ["e3m0"]]
    assert question.settings.tolerance == 1 and question.settings.confidence == 95
    assert len(question.cells) == 12 + 1 and question.settings.most_seeds == 5


def test_all_candidates_share_one_baseline_and_the_runs_are_those_of_a_sweep():
    question = ask(["exp=digits_bits", "search.most_seeds=3", "search.confidence=90"])
    (baseline,) = {c.baseline for ladder in question.ladders for width in ladder.widths for c in width}
    for cell in question.cells.values():
        assert list(cell) == [0, 1, 2]
        assert all(run.config["seed"] == seed for seed, run in cell.items())
    assert question.cells[baseline][2].config["format"] == "fp32"
    sweep = {run.name for run in plan(["exp=digits_bits"]).runs}
    assert {run.name for cell in question.cells.values() for run in cell.values()} == sweep
    run = question.cells[question.ladders[0].widths[0][0].name][0]
    assert "search" not in run.config and not any("search" in text for text in run.overrides)


def test_a_baseline_may_be_no_value_of_the_axis():
    question = ask(["format=e4m3,e3m0", "aps=true", "search.baseline.format=bf16", "search.most_seeds=3"])
    (ladder,) = question.ladders
    assert ladder.label == "with APS" and formats(ladder) == [["e4m3"], ["e3m0"]]
    config = question.cells[ladder.widths[0][0].baseline][0].config
    assert (config["format"], config["aps"]) == ("bf16", False)


def test_a_baseline_may_have_another_recipe_than_the_experiment():
    words = ["exp=digits_bits", "format=fp32", "recipe=nvfp4", "ingredients.rounding=stochastic,nearest_even"]
    question = ask([*words, "search.baseline.recipe=bf16", "search.most_seeds=3"])
    assert question.axis.baseline == {"recipe": "bf16"} and len(question.ladders) == 2


def test_other_axes_make_ladders_with_their_own_baselines():
    question = ask(["format=fp32,e4m3", "aps=false", "world_size=4,8", "search.most_seeds=3"])
    assert [ladder.label for ladder in question.ladders] == [f"without APS, workers {n}" for n in (4, 8)]
    for ladder, workers in zip(question.ladders, (4, 8), strict=True):
        assert question.cells[ladder.widths[0][0].baseline][0].config["world_size"] == workers


def test_another_axis_of_formats_makes_candidates_and_has_the_baseline():
    words = ["format=fp32", "search.most_seeds=3"]
    question = ask([*words, "precision.weights=fp32,e4m3,e3m2", "aps=false"])
    (ladder,) = question.ladders
    assert ladder.label == "of weights" and formats(ladder) == [["e4m3"], ["e3m2"]]
    assert question.cells[ladder.widths[0][0].baseline][0].config["precision"]["weights"] == "fp32"
    assert question.asked["baseline"] == {"precision.weights": "fp32"}
    widest = ask([*words, "precision.weights=e4m3,bf16"])
    assert widest.axis.baseline == {"precision.weights": "bf16"} and formats(widest.ladders[0]) == [["e4m3"]]


def test_each_named_case_is_a_ladder_against_the_case_fp32():
    question = ask(["exp=pure_fp16_ablation_small", "case=fp32,pure", "world_size=8", "search.most_seeds=3"])
    assert [ladder.label for ladder in question.ladders] == ["pure"]
    assert question.cells[question.ladders[0].widths[0][0].baseline][0].config["case"] == "fp32"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["exp=digits_bits", "seed=0,1"], "a search chooses its seeds itself"),
        (["exp=digits_bits", "search.tolerence=1"], "did you mean 'search.tolerance'"),
        (["exp=digits_bits", "search.baseline.recip=bf16"], "did you mean 'search.baseline.recipe'"),
        (["exp=digits_bits", "search.tolerance=0"], "must be a number above 0"),
        (["exp=digits_bits", "search.tolerance=1,2"], "must have one value"),
        (["exp=digits_bits", "search.confidence=100"], "from 50 to below 100"),
        (["exp=digits_bits", "search.most_seeds=2"], "at least 3"),
        (["exp=digits_bits", "search.budget=soon"], "12h, 90min"),
        (["exp=digits_bits", "search.baseline=fp32"], "must give the baseline's values"),
        (["format=fp32"], "no candidate is left besides the baseline"),
    ],
)
def test_invalid_questions_are_one_line(typed, told):
    with pytest.raises(ConfigError, match=told):
        ask(typed)


def test_a_budget_is_a_number_of_runs_or_core_time():
    assert budget(40) == budget("40") == Budget(runs=40)
    assert budget("90min") == Budget(core_hours=1.5) and budget("2h") == Budget(core_hours=2)
    assert budget(None) is None and str(budget("2h")) == "2 core-hours"


WORDS = ["aps=false", "search.most_seeds=3"]


def ladders(*typed):
    """Return the question and, for each ladder, the candidates with their bits, width by width."""
    question = ask([*typed, *WORDS])
    widths = {
        ladder.label: [[(c.label, c.bits) for c in width] for width in ladder.widths]
        for ladder in question.ladders
    }
    named = {
        k: [[(n.removesuffix(f" {k}"), b) for n, b in width] for width in of] for k, of in widths.items()
    }
    return question, named


def baselines(question):
    """Return the configs of the baselines of each ladder."""
    return {
        ladder.label: [question.cells[c.baseline][0].config for width in ladder.widths for c in width]
        for ladder in question.ladders
    }


def test_choices_of_a_group_of_formats_are_candidates():
    question, found = ladders("precision=int8,pure_fp8,fp32,pure_fp16,mixed_fp16,mxfp8", "format=fp32")
    widths = [[("mixed_fp16", 16), ("pure_fp16", 16)], [("mxfp8", 8.25)], [("pure_fp8", 8), ("int8", 8)]]
    assert found == {"of precision": widths}
    assert question.asked["baseline"] == {"precision": "fp32"} and question.asked["axis"] == "precision"
    assert baselines(question)["of precision"][0]["precision"]["weights"] == "fp32"


def test_of_two_axes_of_bits_the_baseline_decides_which_is_searched():
    typed = ["precision.weights=fp32,e4m3,e3m2", "precision.activations=fp32,e5m2"]
    question, found = ladders(*typed)
    assert list(found) == ["of weights, precision.activations fp32", "of weights, precision.activations e5m2"]
    assert question.axis.held == ("precision.activations",)
    question, found = ladders(*typed, "search.baseline={precision.activations: fp32}")
    assert found["of activations, precision.weights e3m2"] == [[("e5m2", 8)]]
    (baseline,) = baselines(question)["of activations, precision.weights e3m2"]
    assert (baseline["precision"]["weights"], baseline["precision"]["activations"]) == ("e3m2", "fp32")


def test_with_a_baseline_on_both_axes_a_format_on_one_is_a_candidate():
    both = "search.baseline={precision.weights: fp32, precision.activations: fp32}"
    _, found = ladders("precision.weights=fp32,e4m3", "precision.activations=fp32,e5m2", both)
    assert found["of weights, precision.activations e5m2"] == [[("fp32", 32)], [("e4m3", 8)]]


def test_one_candidate_is_enough():
    _, found = ladders("precision=pure_fp8", "format=fp32", "search.baseline={precision: fp32}")
    assert found == {"of precision": [[("pure_fp8", 8)]]}
    _, found = ladders("precision.weights=fp32,e4m3", "format=fp32")
    assert found == {"of weights": [[("e4m3", 8)]]}


def test_numbers_of_bits_are_an_axis_of_bits():
    question, found = ladders("precision=int8", "precision.weight_bits=null,8,6", "format=fp32")
    assert found == {"of weight bits": [[("8", 8)], [("6", 6)]]} and question.axis.baseline_name == "fp32"
    question, found = ladders("sync=compressed", "compressor=min_max", "compressor.bits=4,8", "format=fp32")
    assert found == {"of compressor bits": [[("4", 4)]]}
    assert question.asked["baseline_values"] == {"sync.compressor.bits": "8"}


def test_compressors_have_the_bits_of_their_levels_and_sparse_ones_are_no_candidates():
    sync = ["sync=compressed", "format=fp32"]
    assert ladders(*sync, "compressor=rounded,min_max,qsgd")[1] == {
        "of compressor": [[("min_max", 8), ("qsgd", 8)]]
    }
    with pytest.raises(ConfigError, match="no candidate is left besides the baseline"):
        ladders(*sync, "compressor=rounded,top_k")


def test_other_spellings_of_a_format_are_accepted():
    for baseline in ([], ["search.baseline={precision.weights: fp32}"]):
        question, found = ladders("precision.weights=e8m23,e4m3", "format=fp32", *baseline)
        assert found == {"of weights": [[("e4m3", 8)]]} and question.axis.baseline == {
            "precision.weights": "e8m23"
        }
    question, found = ladders("format=bf16,e4m3", "search.baseline={format: e8m7}")
    assert found == {"without APS": [[("e4m3", 8)]]} and question.axis.baseline["format"] == "bf16"
    with pytest.raises(ConfigError, match=r"precision.weights=float32: .*did you mean 'fp32'"):
        ladders("precision.weights=float32,e4m3", "format=fp32")


def test_a_baseline_may_have_its_own_values_of_other_axes():
    question, found = ladders(
        "format=fp32,e4m3", "optim.lr=.05,.2", "search.baseline={format: fp32, optim.lr: .1}"
    )
    assert list(found) == ["without APS, optim.lr 0.05", "without APS, optim.lr 0.2"]
    assert {config["optim"]["lr"] for of in baselines(question).values() for config in of} == {0.1}
    assert question.axis.baseline_name == "fp32 with optim.lr 0.1"
    question = ask(["format=e4m3,e3m0", "scaling=none,aps", "search.baseline={scaling: none}", WORDS[1]])
    (ladder,) = question.ladders
    assert ladder.label == "with APS" and question.asked["baseline_values"] == {"aps": False}
    for candidate in (c for width in ladder.widths for c in width):
        ours, theirs = (question.cells[name][0].config for name in (candidate.name, candidate.baseline))
        assert (ours["format"], theirs["aps"]) == (theirs["format"], False)


def test_rules_of_scaling_are_ladders_against_unscaled_fp32():
    question = ask(["format=fp32,e4m3", "scaling=none,aps,aps_delayed", WORDS[1]])
    assert [c.label for c in question.ladders] == ["without APS", "with APS", "with APS, scaling aps_delayed"]
    assert len({config["aps"] for of in baselines(question).values() for config in of}) == 1


def test_cases_and_an_axis_make_ladders_with_the_baseline_of_the_same_value():
    question, found = ladders("exp=digits_activations", "case=fp32,e5m2", "format=fp32,e4m3")
    assert list(found) == ["e5m2, format fp32", "e5m2, format e4m3"]
    of = baselines(question)
    assert [of[label][0]["format"] for label in found] == ["fp32", "e4m3"]
    assert {c.bits for ladder in question.ladders for width in ladder.widths for c in width} == {8}


def test_without_a_case_called_fp32_cases_are_ladders_of_an_axis_of_bits():
    question = ask(["exp=decentralized_momentum", "search.most_seeds=3"])
    assert question.ladders[0].label == "of precision, case own" and len(question.ladders) == 4
    with pytest.raises(ConfigError, match=r"no case is called fp32: search.baseline=\{case: NAME\}"):
        ask(["exp=decentralized_momentum", "precision=fp32", "search.most_seeds=3"])
