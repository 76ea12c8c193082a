"""recipe=NAME: the config, name and axis of runs with a recipe, and what they train."""

import pytest
import yaml

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import hash_in
from cpdrun.record import read_json
from cpdrun.study.choices import choice
from cpdrun.study.planned_axis import read_axis
from cpdrun.sweep import plan
from cpdrun.train.preflight.check import check

WORDS = ("exp=digits_bits", "format=fp32", "aps=false", "seed=0")
RULES = [{"modules": "Linear", "role": "weight", "format": "bf16"}]


def runs(*typed):
    return plan([*WORDS, *typed]).runs


def test_a_recipe_sets_the_precision_and_null_keeps_the_name():
    plain, mixed, pure = runs("recipe=null,fp32,fp16_mixed,pure_fp16")
    assert plain.name == "convnet-fp32-w8-s0-28fa027ad2", "fp32, of the same content, is not run twice"
    assert [run.config["recipe"] for run in (plain, mixed, pure)] == [None, "fp16_mixed", "pure_fp16"]
    precision = mixed.config["precision"]
    assert precision["loss_scale"] == "dynamic" and precision["rules"][0]["format"] == "fp16"
    rules = yaml.safe_dump(precision["rules"], default_flow_style=True, width=10**9).strip()
    (by_hand,) = runs(f"precision.rules={rules}", "precision.loss_scale=dynamic")
    assert hash_in(by_hand.name) == hash_in(mixed.name) != hash_in(plain.name)
    (scaled,) = runs("recipe=fp16_mixed", "recipe.loss_scale=512.0")
    assert scaled.config["precision"] == precision | {"loss_scale": 512.0}
    assert hash_in(pure.name) == hash_in(runs("precision=pure_fp16")[0].name)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["recipe=nvpf4"], "unknown choice of recipe 'nvpf4' (did you mean 'nvfp4'?)"),
        (["recipe=bf16", "precision=mxfp8"], "recipe=bf16 and precision=mxfp8 both set what is rounded. Use only one"),
        (["recipe=bf16", "precision.weights=e4m3"], "recipe=bf16 and precision.weights=e4m3 both set"),
        (["recipe=bf16", "+recipe.los=3"], "recipe=bf16: unknown key 'los'. A recipe has rules"),
        (["recipe=bf16", "recipe.rule=[]"], "unknown key 'recipe.rule' (did you mean 'recipe.rules'?)"),
        (["recip=bf16"], "unknown key 'recip' (did you mean 'recipe'?)"),
    ],
)  # fmt: skip
def test_mistakes_are_errors(typed, message):
    with pytest.raises(ConfigError) as error:
        runs(*typed)
    assert message in str(error.value)


def test_a_user_can_add_a_recipe(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(yaml.safe_dump({"rules": RULES}))
    (run,) = plan([*WORDS, "recipe=mine"], tmp_path).runs
    assert run.config["precision"]["rules"] == RULES


def test_recipes_are_an_axis_compared_with_the_widest_or_the_given_baseline():
    of_five = plan([*WORDS, "recipe=bf16,mxfp8,nvfp4,mxfp4_hadamard_sr,fp8_tensorwise"])
    axis = read_axis(of_five, {}, is_whole=False)
    assert (axis.key, axis.baseline, axis.is_widest) == ("recipe", {"recipe": "bf16"}, True)
    with_none = plan([*WORDS, "recipe=null,bf16,nvfp4"])
    axis = read_axis(with_none, {}, is_whole=False)
    assert axis.baseline == {"recipe": None} and axis.baseline_name == "fp32"
    assert read_axis(with_none, {"recipe": "bf16"}, is_whole=True).baseline == {"recipe": "bf16"}
    bits = {}
    for run in of_five.runs:
        flat = {f"precision.{key}": value for key, value in run.config["precision"].items()}
        bits[run.config["recipe"]] = choice("", flat, "recipe").bits
    assert bits == {"bf16": 16, "mxfp8": 8.25, "nvfp4": 4.5, "mxfp4_hadamard_sr": 4.25, "fp8_tensorwise": 8}


def test_the_accumulator_of_a_machine_changes_the_weights_slightly(make_run, train_here):
    typed = ("recipe=mxfp8", "format=fp32", "aps=false", "max_steps=2", "epochs=1", "world_size=2")
    run, other = (
        make_run(
            *typed, "ingredients.format=mxfp8_e4m3", "ingredients.head=null", f"+recipe.accumulator={name}"
        )
        for name in ("b200_mxfp8", "fp32")
    )
    assert train_here(run) == train_here(other) == 0
    done, of_other = read_json(run.done), read_json(other.done)
    assert done["weights_sha256"] != of_other["weights_sha256"]
    assert done["metrics"]["test_loss"] == pytest.approx(of_other["metrics"]["test_loss"], rel=1e-3)
    (rounded_up,) = runs("recipe=mxfp8", "+recipe.accumulator=b200_mxfp8")
    (problem,) = check([rounded_up.config])["problems"]
    assert "requires the input in mxfp8_e4m3, but it is in mxfp8_e4m3_rceil" in problem


def test_workers_that_gossip_support_recipes_of_products_only(make_run, train_here):
    run = make_run("recipe=mxfp4_hadamard_sr", "sync=gossip_dpsgd", "format=fp32", "aps=false", "world_size=2",
                   "data.test_fraction=0.1", "epochs=1", "max_steps=2")  # fmt: skip
    assert train_here(run) == 0
    gossip = [*WORDS, "recipe=pure_fp16,fp8_delayed", "sync=gossip_dpsgd", "world_size=2"]
    problems = str(check([refused.config for refused in plan(gossip).runs])["problems"])
    assert "precision.weights=fp16: workers that gossip keep float32 weights" in problems
    message = "precision.rules[0] and precision.rules[1]: workers that gossip take separate optimizer steps"
    assert message in problems


def test_products_outside_a_recipe_are_noted_and_a_recipe_that_reaches_none_is_an_error():
    (run,) = plan(["exp=transformer_bits_small", "format=fp32", "aps=false", "seed=0", "recipe=nvfp4"]).runs
    (note,) = check([run.config])["notes"]
    assert " of the multiply-accumulates; in float32: aten.mm in GPT" in note
    (run,) = runs("recipe=bf16", "model=mlp_parallel", "model.workers=2", "model.in_features=64")
    (problem,) = check([run.config])["problems"]
    assert "precision.rules[0]: '*' or 'MultiheadAttention' matches no layer" in problem
