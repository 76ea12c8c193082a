"""Ingredients of a recipe as axes, in cases and as arguments, for runs and for a user's own model."""

import re
from pathlib import Path

import custom_fp
import pytest
import yaml
from custom_fp.recipe.files import load, with_ingredients
from torch import nn

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import run_name
from cpdrun.config.overrides import flatten
from cpdrun.record import SweepDir, write_text
from cpdrun.search.question import ask
from cpdrun.study.choices import of_case
from cpdrun.study.collect import collect, other_axes
from cpdrun.sweep import plan

NAMES = sorted(path.stem for path in Path("kernels/custom_fp/conf/recipe").glob("*.yaml"))
WORDS = ["exp=digits_recipes", "format=fp32", "seed=0"]


def rules(*words):
    return [run.config["precision"]["rules"] for run in plan([*WORDS, *words]).runs]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_the_same_for_a_run_and_for_a_model_and_uses_all_its_ingredients(name):
    given = load(name)
    filled = with_ingredients(name, given, {})
    assert filled.get("rules", []) == rules(f"recipe={name}")[0] and "${" not in str(filled)
    referred = set(re.findall(r"\$\{ingredients\.(\w+)\}", str(given)))
    assert referred == set(given.get("ingredients", {}))


def test_every_recipe_can_round_the_products_outside_of_layers_too():
    without, every, explicit, some = (
        plan([*WORDS, "recipe=mxfp8", *words]).runs[0].config
        for words in (
            [],
            ["recipe.operations=true"],
            ["recipe.operations=null"],
            ["recipe.operations=['matmul()']"],
        )
    )
    assert [x["precision"]["operations"] for x in (without, every, some)] == [None, True, ["matmul()"]]
    assert len({run_name(x) for x in (without, every, explicit, some)}) == 3
    assert run_name(without) == run_name(explicit)


def test_each_ingredient_may_be_an_axis_and_names_runs_by_what_it_changes():
    axes = ("ingredients.rounding=stochastic,nearest_even", "ingredients.hadamard=16,null")
    found = plan([*WORDS, "recipe=nvfp4", *axes])
    assert len({run.name for run in found.runs}) == 4
    (as_it_is,) = plan([*WORDS, "recipe=nvfp4"]).runs
    assert as_it_is.name == found.runs[0].name, "the recipe's own value changes nothing"
    ours = with_ingredients("nvfp4", load("nvfp4"), {"rounding": "nearest_even", "hadamard": None})
    assert found.runs[3].config["precision"]["rules"] == ours["rules"]


def test_a_case_may_change_an_ingredient_of_its_recipe(experiment):
    cases = "{bf16: {recipe: bf16}, four: {recipe: nvfp4, ingredients.bf16_layers: 0}}"
    bf16, four = plan(["exp=mine"], experiment(f"sweep: {{cases: {cases}}}")).runs
    assert (bf16.config["ingredients"], four.config["ingredients"]["bf16_layers"]) == ({}, 0)
    assert four.config["precision"]["rules"][1]["last"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["recipe=nvfp4", "ingredients.roundin=x"],
            "(did you mean 'ingredients.rounding'?): the ingredients of the recipe are format",
        ),
        (
            ["recipe=bf16", "ingredients.rounding=x"],
            "the chosen recipes have no ingredients. Choose a recipe that has some, such as nvfp4",
        ),
        (["recipe=bf16,nvfp4", "ingredients.rounding=x"], "the chosen recipes have no ingredients"),
        (["recipe=nvfp4", "ingredients.hadamard=x"], "ingredients.hadamard=x: must be a number, such as 16"),
    ],
)
def test_unknown_ingredients_are_reported_with_the_known_ones(words, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan([*WORDS, *words])


@pytest.mark.parametrize("chosen", ["bf16", "null"])
def test_an_experiment_cannot_set_an_ingredient_that_its_recipe_lacks(experiment, chosen):
    folder, message = (
        experiment("ingredients: {rounding: nearest_even}"),
        f"recipe={chosen} has no ingredient of that name",
    )
    with pytest.raises(ConfigError, match=f"ingredients.rounding: {message}"):
        plan(["exp=mine", f"recipe={chosen}"], folder)
    assert plan(["exp=mine", "recipe=nvfp4"], folder).runs


def test_a_baseline_of_another_recipe_is_one_for_all_values_of_an_ingredient():
    words = ["exp=digits_recipes", "recipe=nvfp4", "search.baseline.recipe=bf16"]
    question = ask([*words, "ingredients.rounding=stochastic_8,nearest_even", "ingredients.bf16_layers=0"])
    assert question.baseline_name == "bf16" and len(question.ladders) == 2
    members = [candidate for chain in question.ladders for width in chain.widths for candidate in width]
    (baseline,) = {member.baseline for member in members}
    assert question.config(baseline)["recipe"] == "bf16" and question.config(baseline)["ingredients"] == {}
    found = [question.config(member.name)["ingredients"] for member in members]
    assert [(of["rounding"], of["bf16_layers"]) for of in found] == [("stochastic_8", 0), ("nearest_even", 0)]
    with pytest.raises(ConfigError, match=r"unknown key 'ingredients\.roundin'"):
        ask([*words, "ingredients.roundin=stochastic,nearest_even"])


def test_an_ingredient_of_both_recipes_applies_to_the_baseline_too():
    words = ["exp=digits_recipes", "recipe=nvfp4", "search.baseline.recipe=nvfp4_4over6"]
    question = ask([*words, "ingredients.rounding=stochastic,nearest_even"])
    against = [
        question.config(chain.widths[0][0].baseline)["ingredients"]["rounding"] for chain in question.ladders
    ]
    assert against == ["stochastic", "nearest_even"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"roundng": 1},
            "nvfp4: unknown ingredient 'roundng' (did you mean 'rounding'?); allowed: format, weight_format",
        ),
        ({"rounding": "up"}, "choose one of nearest_even, toward_zero, stochastic"),
    ],
)
def test_arguments_of_apply_recipe_are_checked(said, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        custom_fp.apply_recipe(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), "nvfp4", **said)


def test_a_user_recipe_may_extend_another_recipe(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [nvfp4, _self_]\ningredients: {format: nvint4}\n")
    mine = with_ingredients("mine", load(str(tmp_path / "mine.yaml")), {})
    assert mine == with_ingredients("nvfp4", load("nvfp4"), {"format": "nvint4"})
    (tmp_path / "mine.yaml").write_text("defaults: [nvfp4, mxfp8, _self_]\n")
    with pytest.raises(ValueError, match="must be the name of a recipe and _self_"):
        load(str(tmp_path / "mine.yaml"))


def test_a_report_has_a_column_for_each_ingredient_that_varies(tmp_path):
    sweep = SweepDir(tmp_path / "mine")
    axes = ("ingredients.rounding=stochastic,nearest_even", "ingredients.format=nvfp4,nvint4")
    for planned in plan([*WORDS, "recipe=nvfp4", *axes]).runs:
        run = sweep.run(planned.name)
        run.path.mkdir(parents=True)
        write_text(run.config, yaml.safe_dump(planned.config))
    assert set(other_axes(collect([sweep]))) == {"ingredients.rounding", "ingredients.format"}


def test_a_case_has_the_bits_of_its_recipe():
    (planned,) = plan([*WORDS, "recipe=nvfp4"]).runs
    flat = dict(flatten(planned.config))
    assert of_case("four", flat).bits == 4.5, "not those of the few layers in bf16"
    assert of_case("none", flat | {"recipe": None, "precision.rules": []}).bits == 32


@pytest.mark.parametrize(
    ("words", "baseline"),
    [
        (["exp=llama_fp4"], {"case": "bf16"}),
        (["exp=digits_recipes", "search.baseline={recipe: mxfp8}"], {"recipe": "mxfp8"}),
        (["exp=digits_bits", "search.baseline={precision: fp32}"], None),  # a group's choice is in no record
        (["exp=digits_bits"], None),
    ],
)
def test_a_sweep_passes_its_baseline_to_the_report(words, baseline):
    assert plan([*words, "seed=0"]).question.get("baseline_values") == baseline


@pytest.mark.parametrize(
    ("role", "fmt", "before", "same"),
    [
        ("weight", "e4m3", "convnet-fp32-w1-s0-63a517281c", True),
        ("activation", "mxfp4", "convnet-fp32-w1-s0-8eae997703", True),
        ("weight", "mxfp4", "convnet-fp32-w1-s0-96f54bb5b9", False),
    ],
)
def test_rules_with_blocks_along_sums_give_other_run_names_than_before(role, fmt, before, same):
    config = plan([*WORDS, "recipe=null"]).runs[0].config
    rules = [{"modules": "*", "role": role, "format": fmt}]
    found = run_name({**config, "precision": {**config["precision"], "rules": rules}})
    assert (found == before) == same
