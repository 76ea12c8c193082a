"""What runs in an emulated accumulator and what does not is seen on one sample, and stands in env.json."""

from functools import partial

import custom_fp
import torch
from torch import nn

from cpdrun.models.gpt import GPT
from cpdrun.record import read_json
from cpdrun.sweep import plan
from cpdrun.train.preflight.check import check
from cpdrun.train.preflight.products import coverage_of, products_of


def reached(model: nn.Module, x: torch.Tensor) -> dict:
    return products_of(model, coverage_of(model, partial(model, x)))


def test_attention_and_a_tied_head_are_left_in_float32():
    gpt = GPT(num_classes=16, context=8, layers=2, heads=2, width=8, dropout=0.0)
    model = custom_fp.quantize_model(gpt, accumulator="e5m2")
    found = reached(model, torch.zeros(1, 8, dtype=torch.long))
    layers = ("qkv", "project", "mlp.0", "mlp.2")
    assert found["in the accumulator"] == [f"blocks.{b}.{layer}" for b in (0, 1) for layer in layers]
    assert {text.split(" in ")[1] for text in found["in float32"]} == {"blocks.*", "GPT"}


def test_what_torch_multiplies_is_seen_whatever_it_is_called():
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
        (nn.Bilinear(4, 4, 2), None),
        (nn.ConvTranspose1d(1, 1, 3), torch.ones(1, 1, 5)),
        (nn.Conv2d(1, 1, 3), torch.ones(1, 1, 5, 5)),
        (nn.Linear(4, 3), torch.ones(2, 4)),
    ):
        if x is None:
            model, x = Twice(model), torch.ones(2, 4)
        assert reached(model.train(), x)["in float32"], type(model).__name__
        assert model.training


class Twice(nn.Module):
    def __init__(self, bilinear: nn.Module):
        super().__init__()
        self.bilinear = bilinear

    def forward(self, x):
        return self.bilinear(x, x)


def test_layers_in_the_accumulator_are_no_float32_products():
    model = custom_fp.quantize_model(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2)), accumulator="e5m2"
    )
    found = reached(model, torch.ones(1, 1, 5, 5))
    assert found["in the accumulator"] == ["0", "2"] and found["in float32"] == []
    assert found["coverage"] == {"float32 summed in e5m2": 1, "float32": 0}


def test_env_says_which_products_are_emulated(make_run, train_here, capfd):
    run = make_run("precision.accumulator=e5m10", "epochs=1", "data.test_fraction=0.9")
    assert train_here(run) == 0
    products = read_json(run.env)["products"]
    assert products["in float32"] == [] and len(products["in the accumulator"]) > 1
    assert products["coverage"] == {"float32 summed in fp16": 1, "float32": 0}
    assert "multiply-accumulates: float32 summed in fp16 100 %, float32 0 %" in capfd.readouterr().out


def test_what_stays_in_float32_is_said_before_the_start():
    words = [
        "exp=transformer_bits_small",
        "precision.accumulator=e5m10",
        "format=fp32",
        "aps=false",
        "seed=0",
    ]
    (run,) = plan(words).runs
    (note,) = check([run.config])["notes"]
    assert note.startswith("precision.accumulator=fp16: float32 summed in fp16 ")
    assert "of the multiply-accumulates; in float32: aten." in note
    (plain,) = plan([*words, "precision.accumulator=fp32"]).runs
    assert check([plain.config]) == {"problems": [], "notes": []}
