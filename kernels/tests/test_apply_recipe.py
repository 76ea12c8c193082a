"""`apply_recipe` on a user's model: every built-in recipe, what stays in float32, and errors."""

import copy
import re
from pathlib import Path

import custom_fp
import pytest
import torch
import yaml
from custom_fp.recipe.quantization_spec import SIGNS
from torch import nn
from torch.nn import functional as F

CONF = Path(custom_fp.__file__).parent / "conf" / "recipe"
FOR_EXPERTS = {"moe_parts"}  # This recipe rejects models without experts. test_model_parts.py tests it.
RECIPES = sorted({path.stem for path in CONF.glob("*.yaml")} - FOR_EXPERTS)
POSTCARD_LINES, POSTCARD_COLUMNS = 36, 120
# of the gradient's length: what the formats' digits let expect (2^-9 .. 2^-2 a value), with room for what cancels
FURTHEST = {"fp32": 0, "bf16": 2**-5, "fp16_mixed": 2**-8, "pure_fp16": 2**-6, "int8": 2**-4}
INDEX = torch.arange(80).view(4, 20) * 7 % 11


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.symbols = nn.Embedding(11, 32)
        self.conv = nn.Conv1d(32, 32, 3, padding=1)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 11)

    def forward(self, index):
        return self.head(self.norm(self.encoder(self.conv(self.symbols(index).mT).mT)))


def gradient(net):
    loss = F.cross_entropy(net(INDEX).flatten(0, 1), INDEX.flatten())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_that_ships(name):
    net, plain = Net(), Net()
    layers, parameters = list(net.modules()), list(net.parameters())
    applied = custom_fp.apply_recipe(net, name)
    torch.manual_seed(1)
    expected, found = gradient(plain), gradient(net)
    far = (found - expected).norm() / expected.norm()
    assert far <= FURTHEST.get(name, 0.25) and (far > 0) == (name != "fp32")
    assert all(a is b for a, b in zip(layers, net.modules(), strict=True))
    assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True))
    applied.check_called()
    reached = ["conv", "encoder.linear1", "encoder.linear2", "encoder.self_attn", "head"]
    attention = ["encoder.self_attn.scores", "encoder.self_attn.values"]
    no_attention = ["conv", "encoder.linear1", "encoder.linear2", "head"]
    expected = {"fp32": [], "pure_fp16": no_attention, "forward_blocks": reached}
    assert sorted(applied.rounded) == expected.get(name, sorted(reached + attention))
    assert {"symbols", "norm"} <= set(applied.untouched) and not set(applied.untouched) & set(applied.rounded)
    text = (CONF / f"{name}.yaml").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= POSTCARD_LINES and max(map(len, lines)) <= POSTCARD_COLUMNS
    assert lines[0].startswith("# ") and (name == "fp32" or re.search(r"arXiv \d{4}\.\d{5}", text))


def test_the_nvfp4_recipe_rounds_as_its_paper():
    """Sections of arXiv 2509.25149 in its words: the last layers, tiles for weights, transforms and draws."""
    rounded = custom_fp.apply_recipe(Net(), "nvfp4").rounded
    assert rounded["encoder.linear1"].split(", ") == [
        "input of forward=nvfp4",
        *["input of weight_gradient=nvfp4 (hadamard 16)", "weight=nvfp4_2d"],
        "output_gradient of input_gradient=nvfp4 (stochastic)",
        *["output_gradient of weight_gradient=nvfp4 (stochastic", "hadamard 16)"],
        *["result of forward=bf16", "result of input_gradient=bf16"],
    ]
    assert rounded["head"].startswith("input=bf16, weight=bf16, output_gradient=bf16, result of")
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(2)))
    x, w, dy = torch.randn(64, 32), layers[0].weight.detach().clone(), torch.randn(64, 32)
    bf16 = lambda t: custom_fp.quantize(t, "bf16")  # noqa: E731
    custom_fp.apply_recipe(layers, "nvfp4")
    torch.manual_seed(3)
    y = layers[0](x)
    product = F.linear(custom_fp.quantize(x, "nvfp4", axis=-1), custom_fp.quantize(w, "nvfp4_2d"))
    assert torch.equal(y, bf16(product + bf16(layers[0].bias)))
    (dw,) = torch.autograd.grad(y, layers[0].weight, dy)
    torch.manual_seed(3)
    turned = [custom_fp.hadamard(t, 16, seed=SIGNS, axis=0) for t in (dy, x)]
    errors = custom_fp.quantize(turned[0], "nvfp4", axis=0, rounding="stochastic")
    assert torch.equal(dw, errors.t() @ custom_fp.quantize(turned[1], "nvfp4", axis=0))


def test_recipes_are_mappings_lists_or_files(tmp_path):
    rules = [{"modules": "head", "role": "weight", "format": "e4m3", "steps": [1, None]}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"rules": rules, "loss_scale": 512.0}))
    expected = gradient(Net())
    for recipe in (rules, {"rules": rules}, str(tmp_path / "mine.yaml")):
        net = Net()
        applied = custom_fp.apply_recipe(net, recipe)
        assert torch.equal(gradient(net), expected)
        applied.at(1)
        assert not torch.equal(gradient(net), expected)
    assert applied.left_to_the_loop == {"loss_scale": 512.0} and "loss_scale: 512.0" in str(applied)
    shared = nn.Linear(4, 4)
    net = nn.Sequential(shared, shared)
    custom_fp.apply_recipe(net, "bf16")
    assert net[0] is shared is net[1] and repr(copy.deepcopy(net)).count("weight=bf16") == 2


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            "nvpf4",
            "unknown recipe 'nvpf4' (did you mean 'nvfp4'?); allowed: bf16, forward_blocks, fp16_mixed",
        ),
        ("mine.yaml", "recipe mine.yaml: there is no such file"),
        ({"rule": []}, "recipe: unknown key 'rule' (did you mean 'rules'?); allowed: rules, "),
        (3, "recipe: a recipe must be a name, a mapping such as {rules: [...]}, or a list of rules, not 3"),
        ({"rules": "e4m3"}, "recipe.rules=e4m3: must be a list of rules"),
        (
            [{"modules": "tail", "role": "weight", "format": "e4m3"}],
            "recipe.rules[0]: 'tail' matches no layer",
        ),
        ([{"modules": "*", "role": "weight", "format": "e9m9"}], "recipe.rules[0].format=e9m9: "),
        (
            [{"modules": "*", "role": "weight", "format": "nvfp4", "rounding": "stochastic_bad"}],
            "(did you mean 'stochastic'?)",
        ),
        (
            [{"modules": "*", "role": "input", "format": "nvfp4", "hadamard": 16}],
            "transforms input of forward but not",
        ),
    ],
)
def test_errors(recipe, message):
    net = Net()
    with pytest.raises(ValueError) as error:
        custom_fp.apply_recipe(net, recipe)
    assert message in str(error.value)
    assert str(net) == str(Net()), "the model is as it was"


def test_a_second_recipe_is_refused():
    net = Net()
    custom_fp.apply_recipe(net, "bf16")
    with pytest.raises(ValueError, match="mxfp8: a recipe was already applied to this Net"):
        custom_fp.apply_recipe(net, "mxfp8")
