"""Experiments as questions: ladders, widths, baselines, and questions that a search refuses."""

import pytest

from cpdrun.commands.search import with_min_coverage
from cpdrun.config.errors import ConfigError
from cpdrun.search.question import ask
from cpdrun.search.settings import Budget, budget
from cpdrun.sweep import plan

FEW = "search.most_seeds=3"


def ladders(question):
    """Return the names and bits of the candidates of each ladder, width by width."""
    return {
        ladder.label: [
            [(c.label.removesuffix(f" {ladder.label}"), c.bits) for c in width] for width in ladder.widths
        ]
        for ladder in question.ladders
    }


def baselines(question):
    """Return the config of the first baseline of each ladder."""
    return {x.label: question.cells[x.widths[0][0].baseline][0].config for x in question.ladders}


def test_formats_are_ladders_with_and_without_aps_and_share_one_baseline():
    question = ask(["exp=digits_bits", "search.tolerance=1", FEW, "search.confidence=90"])
    assert [ladder.label for ladder in question.ladders] == ["without APS", "with APS"]
    widths = [[("e5m2", 8), ("e4m3", 8), ("e3m4", 8)], [("e4m1", 6), ("e3m2", 6)], [("e3m0", 4)]]
    assert list(ladders(question).values()) == [widths, widths]
    assert (question.settings.tolerance, question.settings.confidence) == (1, 90)
    assert question.settings.most_seeds == 3 and len(question.cells) == 12 + 1
    (baseline,) = {c.baseline for ladder in question.ladders for width in ladder.widths for c in width}
    for cell in question.cells.values():
        assert list(cell) == [0, 1, 2]
        assert all(run.config["seed"] == seed for seed, run in cell.items())
    assert question.cells[baseline][2].config["format"] == "fp32"
    sweep = {run.name for run in plan(["exp=digits_bits"]).runs}
    assert {run.name for cell in question.cells.values() for run in cell.values()} == sweep
    run = question.cells[question.ladders[0].widths[0][0].name][0]
    assert "search" not in run.config and not any("search" in text for text in run.overrides)


TWO_AXES = ("precision.weights=fp32,e4m3,e3m2", "precision.activations=fp32,e5m2")
BOTH = "search.baseline={precision.weights: fp32, precision.activations: fp32}"
E4M3 = [[("e4m3", 8)]]
QUESTIONS = [
    (("format=e4m3,e3m0", "aps=true", "search.baseline.format=bf16"), {"with APS": [*E4M3, [("e3m0", 4)]]}),
    (("format=fp32,e4m3", "world_size=4,8"), {f"without APS, workers {n}": E4M3 for n in (4, 8)}),
    (("format=fp32", "precision.weights=fp32,e4m3,e3m2"), {"of weights": [*E4M3, [("e3m2", 6)]]}),
    (("format=fp32", "precision.weights=e4m3,bf16"), {"of weights": E4M3}),
    (("format=fp32", "precision.weights=e8m23,e4m3"), {"of weights": E4M3}),
    (("format=bf16,e4m3", "search.baseline={format: e8m7}"), {"without APS": E4M3}),
    (
        ("format=fp32", "precision=pure_fp8", "search.baseline={precision: fp32}"),
        {"of precision": [[("pure_fp8", 8)]]},
    ),
    (
        ("format=fp32", "precision=int8,pure_fp8,fp32,pure_fp16,mixed_fp16,mxfp8"),
        {
            "of precision": [
                [("mixed_fp16", 16), ("pure_fp16", 16)],
                [("mxfp8", 8.25)],
                [("pure_fp8", 8), ("int8", 8)],
            ]
        },
    ),
    (
        ("format=fp32", *TWO_AXES),
        {f"of weights, precision.activations {a}": [*E4M3, [("e3m2", 6)]] for a in ("fp32", "e5m2")},
    ),
    (
        ("format=fp32", *TWO_AXES, "search.baseline={precision.activations: fp32}"),
        {f"of activations, precision.weights {w}": [[("e5m2", 8)]] for w in ("fp32", "e4m3", "e3m2")},
    ),
    (
        ("format=fp32", "precision.weights=fp32,e4m3", TWO_AXES[1], BOTH),
        {
            "of weights, precision.activations fp32": E4M3,
            "of weights, precision.activations e5m2": [[("fp32", 32)], *E4M3],
        },
    ),
    (
        ("format=fp32", "precision=int8", "precision.weight_bits=null,8,6"),
        {"of weight bits": [[("8", 8)], [("6", 6)]]},
    ),
    (
        ("format=fp32", "sync=compressed", "compressor=min_max", "compressor.bits=4,8"),
        {"of compressor bits": [[("4", 4)]]},
    ),
    (
        ("format=fp32", "sync=compressed", "compressor=rounded,min_max,qsgd"),
        {"of compressor": [[("min_max", 8), ("qsgd", 8)]]},
    ),
    (
        ("format=fp32,e4m3", "optim.lr=.05,.2", "search.baseline={format: fp32, optim.lr: .1}"),
        {f"without APS, optim.lr {lr}": E4M3 for lr in (0.05, 0.2)},
    ),
    (
        ("exp=digits_activations", "case=fp32,e5m2", "format=fp32,e4m3"),
        {f"e5m2, format {name}": [[(f"e5m2, format {name}", 8)]] for name in ("fp32", "e4m3")},
    ),
]


@pytest.mark.parametrize(("typed", "expected"), QUESTIONS, ids=lambda value: " ".join(value))
def test_the_ladders_of_a_question(typed, expected):
    aps = () if any("aps=" in word for word in typed) else ("aps=false",)
    assert ladders(ask([*typed, *aps, FEW])) == expected


def test_the_baseline_has_the_values_of_its_ladder():
    question = ask(["format=e4m3,e3m0", "aps=true", "search.baseline.format=bf16", FEW])
    config = baselines(question)["with APS"]
    assert (config["format"], config["aps"]) == ("bf16", False)
    question = ask(["format=fp32,e4m3", "aps=false", "world_size=4,8", FEW])
    assert [config["world_size"] for config in baselines(question).values()] == [4, 8]
    question = ask(
        ["format=fp32", *TWO_AXES, "aps=false", "search.baseline={precision.activations: fp32}", FEW]
    )
    of_e3m2 = baselines(question)["of activations, precision.weights e3m2"]["precision"]
    assert (of_e3m2["weights"], of_e3m2["activations"]) == ("e3m2", "fp32")
    question = ask(
        ["format=fp32,e4m3", "optim.lr=.05,.2", "search.baseline={format: fp32, optim.lr: .1}", FEW]
    )
    assert {config["optim"]["lr"] for config in baselines(question).values()} == {0.1}
    assert question.axis.baseline_name == "fp32 with optim.lr 0.1"
    question = ask(["format=e4m3,e3m0", "scaling=none,aps", "search.baseline={scaling: none}", FEW])
    assert list(ladders(question)) == ["with APS"] and question.asked["baseline_values"] == {"aps": False}
    for candidate in (c for width in question.ladders[0].widths for c in width):
        ours, theirs = (question.cells[name][0].config for name in (candidate.name, candidate.baseline))
        assert (ours["format"], theirs["aps"]) == (theirs["format"], False)


def test_the_baseline_is_found_on_the_axis():
    for word, baseline in (
        ("precision.weights=fp32,e4m3", {"precision.weights": "fp32"}),
        ("precision.weights=e4m3,bf16", {"precision.weights": "bf16"}),  # the widest
        ("precision.weights=e8m23,e4m3", {"precision.weights": "e8m23"}),
        ("precision=fp32,pure_fp8", {"precision": "fp32"}),
    ):
        question = ask(["format=fp32", "aps=false", word, FEW])
        assert question.axis.baseline == question.asked["baseline"] == baseline
    question = ask(["format=fp32", "precision=int8", "precision.weight_bits=null,8", "aps=false", FEW])
    assert question.axis.baseline_name == "fp32"


def test_recipes_scaling_rules_and_cases_make_ladders():
    words = ["exp=digits_bits", "format=fp32", "recipe=nvfp4", "ingredients.rounding=stochastic,nearest_even"]
    question = ask([*words, "search.baseline.recipe=bf16", FEW])
    assert question.axis.baseline == {"recipe": "bf16"} and len(question.ladders) == 2
    question = ask(["format=fp32,e4m3", "scaling=none,aps,aps_delayed", FEW])
    assert list(ladders(question)) == ["without APS", "with APS", "with APS, scaling aps_delayed"]
    assert len({config["aps"] for config in baselines(question).values()}) == 1
    question = ask(["exp=pure_fp16_ablation_small", "case=fp32,pure", "world_size=8", FEW])
    assert list(ladders(question)) == ["pure"] and baselines(question)["pure"]["case"] == "fp32"
    question = ask(["exp=decentralized_momentum", FEW])  # no case is called fp32
    assert question.ladders[0].label == "of precision, case own" and len(question.ladders) == 4


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
        (
            ["format=fp32", "sync=compressed", "compressor=rounded,top_k"],
            "no candidate is left besides the baseline",
        ),
        (
            ["format=fp32", "precision.weights=float32,e4m3"],
            r"precision.weights=float32: .*did you mean 'fp32'",
        ),
        (
            ["exp=decentralized_momentum", "precision=fp32", FEW],
            r"no case is called fp32: .* search.baseline=\{case: NAME\}",
        ),
    ],
)
def test_invalid_questions_are_one_line(typed, told):
    with pytest.raises(ConfigError, match=told):
        ask(typed)


def test_a_budget_is_a_number_of_runs_or_core_time():
    assert budget(40) == budget("40") == Budget(runs=40)
    assert budget("90min") == Budget(core_hours=1.5) and budget("2h") == Budget(core_hours=2)
    assert budget(None) is None and str(budget("2h")) == "2 core-hours"


def test_only_candidates_with_other_product_formats_than_the_baseline_need_coverage():
    def needs_coverage(*words):
        question = ask([*words, FEW, "search.min_coverage=0.4"])
        configs = [cell[0].config for cell in question.cells.values()]
        checked = with_min_coverage(question, configs)
        assert {config.get("min_coverage") for config in checked} <= {None, 0.4}
        return [config["recipe"] or config["format"] for config in checked if "min_coverage" in config]

    assert needs_coverage("exp=digits_recipes", "recipe=bf16,nvfp4") == ["nvfp4"]
    assert needs_coverage("exp=digits_bits", "format=fp32,e4m3", "precision.accumulator=fp16") == []
