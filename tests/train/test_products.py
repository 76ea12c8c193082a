"""Which products of a model are emulated, found with one sample, recorded in env.json and noted before the start."""

from functools import partial

import custom_fp
import pytest
import torch
from custom_fp.recipe.coverage import shares_text
from torch import nn

from cpdrun.models.gpt import GPT
from cpdrun.record import read_json
from cpdrun.sweep import plan
from cpdrun.train.precision.product_entries import arithmetics, products_of
from cpdrun.train.preflight.check import check
from cpdrun.train.preflight.products import coverage_of


def reached(model: nn.Module, x: torch.Tensor) -> dict:
    return products_of(arithmetics(model), coverage_of(model, partial(model, x)))


def test_attention_and_a_tied_head_stay_in_float32():
    gpt = GPT(num_classes=16, context=8, layers=2, heads=2, width=8, dropout=0.0)
    model = custom_fp.quantize_model(gpt, accumulator="e5m2")
    found = reached(model, torch.zeros(1, 8, dtype=torch.long))
    layers = ("qkv", "project", "mlp.0", "mlp.2")
    assert found["in the accumulator"] == [f"blocks.{b}.{layer}" for b in (0, 1) for layer in layers]
    assert {text.split(" in ")[1] for text in found["in float32"]} == {"blocks.*", "GPT"}


class Own(nn.Module):
    """A module that uses the weight of its layer without calling the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.einsum("bi,ij->bj", x, self.layer.weight)


def test_every_kind_of_product_of_torch_is_found():
    for model, x in (
        (Own(), torch.ones(2, 4)),
        (nn.LSTM(4, 3), torch.ones(2, 1, 4)),
        (nn.GRU(4, 3), torch.ones(2, 1, 4)),
        (Twice(nn.Bilinear(4, 4, 2)), torch.ones(2, 4)),
        (nn.ConvTranspose1d(1, 1, 3), torch.ones(1, 1, 5)),
        (nn.Conv2d(1, 1, 3), torch.ones(1, 1, 5, 5)),
        (nn.Linear(4, 3), torch.ones(2, 4)),
    ):
        assert reached(model.train(), x)["in float32"], type(model).__name__
        assert model.training


class Twice(nn.Module):
    def __init__(self, bilinear: nn.Module):
        super().__init__()
        self.bilinear = bilinear

    def forward(self, x):
        return self.bilinear(x, x)


def test_layers_in_an_accumulator_are_not_float32_products():
    model = custom_fp.quantize_model(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2)), accumulator="e5m2"
    )
    found = reached(model, torch.ones(1, 1, 5, 5))
    assert found["in the accumulator"] == ["0", "2"] and found["in float32"] == []
    assert found["coverage"] == {"float32 summed in e5m2": 1, "float32": 0}


@pytest.mark.parametrize(
    ("typed", "kind"),
    [("precision.accumulator=e5m10", "in the accumulator"), ("recipe=nvfp4", "operands rounded")],
)
def test_env_lists_the_emulated_products(make_run, train_here, capfd, typed, kind):
    run = make_run("format=fp32", "aps=false", typed, "epochs=1", "max_steps=1", "data.test_fraction=0.9")
    assert train_here(run) == 0
    products = read_json(run.env)["products"]
    assert products["in float32"] == [] and len(products[kind]) == 4
    assert sum(products["coverage"].values()) == pytest.approx(1) and products["coverage"]["float32"] == 0
    assert f"multiply-accumulates: {shares_text(products['coverage'])}" in capfd.readouterr().out


def test_rules_of_later_steps_are_not_refused(make_run, train_here):
    """The check before the run counts only the first step, in which this rule is not yet active."""
    rule = "{modules:'*',role:weight,format:e4m3,steps:[1,2]}"
    typed = "format=fp32", "aps=false", "epochs=1", "max_steps=2", "data.test_fraction=0.9"
    assert train_here(make_run(*typed, f"precision.rules=[{rule}]")) == 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("precision.accumulator=e5m10", "precision.accumulator=fp16"),
        ("precision.rules=[{modules:'blocks.*',role:weight,format:e4m3}]", "precision.rules[0]"),
        ("precision.accumulator=fp32", None),
    ],
)
def test_products_that_stay_in_float32_are_noted_before_the_start(typed, said):
    (run,) = plan(["exp=transformer_bits_small", "format=fp32", "aps=false", "seed=0", typed]).runs
    found = check([run.config])
    assert found["problems"] == [] and len(found["notes"]) == (said is not None)
    for note in found["notes"]:
        assert note.startswith(f"{said}: ")
        assert " of the multiply-accumulates; in float32: aten." in note


def test_a_search_refuses_formats_that_reach_too_little_of_the_arithmetic():
    words = ["exp=transformer_bits_small", "format=fp32", "aps=false", "seed=0"]
    rules = "precision.rules=[{modules:'blocks.0.qkv',role:[input,weight,output_gradient],format:e4m3}]"
    (run,) = plan([*words, rules]).runs
    assert check([run.config])["problems"] == []
    (problem,) = check([run.config | {"min_coverage": 0.5}])["problems"]
    assert problem.startswith("precision.rules[0]: float32 ")
    assert (
        "it reaches less than 50% of the arithmetic. To search anyway, add search.min_coverage=0." in problem
    )
    typed = float(problem.rsplit("=", 1)[1])
    assert check([run.config | {"min_coverage": typed}])["problems"] == []


def test_rules_whose_layers_are_never_called_are_refused():
    model = Own()
    applied = custom_fp.apply_recipe(model, [{"modules": "layer", "role": "weight", "format": "e4m3"}])
    never_called = coverage_of(model, partial(model, torch.ones(2, 4))).never_called
    assert never_called == ["layer"]
    with pytest.raises(
        ValueError, match=r"the model calls none of the layers selected by this rule, such as layer"
    ):
        applied.placement.check_called(never_called)
