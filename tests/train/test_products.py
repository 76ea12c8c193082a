"""Which products of a model are emulated, found with one sample, recorded in env.json and noted before the start."""

from functools import partial

import custom_fp
import pytest
import torch
from torch import nn

from cpdrun.models.gpt import GPT
from cpdrun.record import read_json
from cpdrun.sweep import plan
from cpdrun.train.preflight.check import check
from cpdrun.train.preflight.products import products_of


def test_attention_and_a_tied_head_stay_in_float32():
    gpt = GPT(num_classes=16, context=8, layers=2, heads=2, width=8, dropout=0.0)
    model = custom_fp.quantize_model(gpt, accumulator="e5m2")
    found = products_of(model, lambda: model(torch.zeros(1, 8, dtype=torch.long)))
    layers = ("qkv", "project", "mlp.0", "mlp.2")
    assert found["in the accumulator"] == [f"blocks.{b}.{layer}" for b in (0, 1) for layer in layers]
    where = {text.split(": ")[0] for text in found["in float32"]}
    assert where == {"blocks.0 (Block)", "blocks.1 (Block)", "GPT"}


def test_every_kind_of_product_of_torch_is_found():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(4))

        def forward(self, x):
            return torch.einsum("bi,ij->bj", x, self.weight)

    for model, x in (
        (Own(), torch.ones(2, 4)),
        (nn.LSTM(4, 3), torch.ones(2, 1, 4)),
        (nn.GRU(4, 3), torch.ones(2, 1, 4)),
        (Twice(nn.Bilinear(4, 4, 2)), torch.ones(2, 4)),
        (nn.ConvTranspose1d(1, 1, 3), torch.ones(1, 1, 5)),
        (nn.Conv2d(1, 1, 3), torch.ones(1, 1, 5, 5)),
        (nn.Linear(4, 3), torch.ones(2, 4)),
    ):
        assert products_of(model.train(), partial(model, x))["in float32"], type(model).__name__
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
    found = products_of(model, lambda: model(torch.ones(1, 1, 5, 5)))
    assert found == {"in the accumulator": ["0", "2"], "in float32": []}


@pytest.mark.parametrize(
    ("typed", "kind"),
    [("precision.accumulator=e5m10", "in the accumulator"), ("recipe=nvfp4", "operands rounded")],
)
def test_env_lists_the_emulated_products(make_run, train_here, typed, kind):
    run = make_run("format=fp32", "aps=false", typed, "epochs=1", "max_steps=1", "data.test_fraction=0.9")
    assert train_here(run) == 0
    products = read_json(run.env)["products"]
    assert products["in float32"] == [] and len(products[kind]) == 4


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
        assert note.startswith(f"{said} reaches 8 layers; 3 products stay in float32: blocks.0 (Block)")
