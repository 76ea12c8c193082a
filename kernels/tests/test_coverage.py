"""Which formats the multiply-accumulates of a model read: counts by hand, places, and what a count leaves alone."""

import copy

import custom_fp
import pytest
import torch
from custom_fp.recipe.coverage import count_macs
from torch import nn
from torch.nn import functional as F

BF16 = [{"modules": ["*"], "role": ["input", "weight", "output_gradient"], "format": "bf16"}]


class Called(nn.Module):
    """A module with two layers and a function of them."""

    def __init__(self, function, first=None, second=None):
        super().__init__()
        self.function, self.first, self.second = function, first, second or nn.Linear(1, 1)

    def forward(self, *x):
        return self.function(self, *x)


def macs(applied, *inputs):
    """Return the multiply-accumulates by format and operator."""
    counts = {}
    for product, count in applied.coverage(applied.model, *inputs).macs.items():
        key = product.label, product.operator
        counts[key] = counts.get(key, 0) + count
    return counts


def test_shares_of_a_small_network():
    """The first layer has no gradient of its input, so it has two products and the second layer has three."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    rules = [{"modules": "2", "role": ["input", "weight", "output_gradient"], "format": "nvfp4_2d"}, *BF16]
    coverage = custom_fp.apply_recipe(model, rules).coverage(model, torch.randn(5, 8))
    first, second = 2 * 5 * 8 * 16, 3 * 5 * 16 * 4
    assert dict(coverage) == {
        "bf16": first / (first + second),
        "nvfp4": second / (first + second),
        "float32": 0,
    }
    assert coverage.summary() == "bf16 57%, nvfp4 43%, float32 0%" and coverage.rounded == 1


LAYERS = [
    (nn.Linear(4, 6), (2, 3, 4), 2 * 3 * 4 * 6),
    (nn.Conv1d(4, 6, 3), (2, 4, 10), 2 * 8 * 6 * 4 * 3),
    (nn.Conv1d(4, 4, 3, groups=4), (2, 4, 10), 2 * 8 * 4 * 3),
    (nn.Conv2d(4, 6, 3, stride=2, groups=2), (2, 4, 9, 9), 2 * 16 * 6 * 2 * 9),
    (nn.ConvTranspose1d(4, 6, 3), (2, 4, 10), 2 * 10 * 6 * 4 * 3),
    (nn.LSTM(4, 6), (5, 2, 4), 5 * 2 * 4 * 6 * (4 + 6)),
]


@pytest.mark.parametrize(("layer", "shape", "forward"), LAYERS, ids=lambda value: type(value).__name__)
def test_the_three_products_of_a_layer_are_counted(layer, shape, forward):
    x = torch.randn(shape, requires_grad=True)
    counts = macs(custom_fp.apply_recipe(copy.deepcopy(layer), []), x)
    assert sum(counts.values()) == 3 * forward, counts
    if type(layer) in (nn.Linear, nn.Conv1d, nn.Conv2d):
        counts = macs(custom_fp.apply_recipe(copy.deepcopy(layer), BF16), x)
        assert sum(counts.values()) == 3 * forward and {formats for formats, _ in counts} == {"bf16"}


@pytest.mark.parametrize("fused", [True, False])
def test_both_products_of_attention_are_counted(fused):
    def attend(self, x):
        q = self.first(x)
        if fused:
            return F.scaled_dot_product_attention(q, q, q)
        return (q @ q.mT).softmax(-1) @ q

    model = Called(attend, nn.Linear(8, 8))
    applied = custom_fp.apply_recipe(model, BF16)
    counts = macs(applied, torch.randn(2, 3, 5, 8))
    in_float32 = {operator: count for (formats, operator), count in counts.items() if formats == "float32"}
    assert sum(in_float32.values()) == 3 * 2 * (2 * 3 * 5 * 5 * 8)
    assert sum(counts.values()) - sum(in_float32.values()) == 2 * (2 * 3 * 5 * 8 * 8)
    assert all(
        "scaled_dot_product" in operator if fused else operator == "aten.bmm" for operator in in_float32
    )


def test_grouped_products_are_counted():
    def experts(self, x):
        return torch._grouped_mm(self.first(x), self.stack.mT, offs=torch.tensor([4, 16], dtype=torch.int32))

    model = Called(experts, nn.Linear(16, 16, bias=False))
    model.stack = nn.Parameter(torch.randn(2, 32, 16))
    coverage = custom_fp.apply_recipe(model.bfloat16(), BF16).coverage(model, torch.randn(16, 16).bfloat16())
    grouped = sum(count for product, count in coverage.macs.items() if product.operator == "aten._grouped_mm")
    assert grouped == 3 * 16 * 16 * 32


def test_a_layer_whose_weight_is_used_elsewhere_was_never_called():
    model = Called(
        lambda self, x: F.linear(self.first(x), self.second.weight), nn.Linear(4, 4), nn.Linear(4, 2)
    )
    coverage = custom_fp.apply_recipe(model, BF16).coverage(model, torch.randn(3, 4))
    assert coverage.never_called == ["second"]
    assert set(coverage.in_float32()) == {"aten.mm in Called"}
    assert "named by rules, never called: second" in str(coverage)
    # Three products of 3x4x2 in float32, and two of 3x4x4 in bf16.
    assert coverage["float32"] == 72 / (72 + 96)


def test_a_replaced_forward_of_an_instance_is_not_rounded():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    forward = model[0].forward
    model[0].forward = lambda x: forward(x)
    coverage = custom_fp.apply_recipe(model, BF16).coverage(model, torch.randn(3, 4))
    assert coverage.never_called == ["0"] and coverage["float32"] == 2 / 5


def test_dtypes_count_where_no_rule_rounds():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    applied = custom_fp.apply_recipe(model, [{"modules": "1", "role": "weight", "format": "e4m3"}])
    with torch.autocast("cpu", torch.bfloat16):
        coverage = applied.coverage(model, torch.randn(3, 4))
    assert set(coverage) == {"bf16", "e4m3 x float32", "float32"}


def test_accumulators_are_counted_by_the_formats_of_the_operands():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    rules = [{"modules": "*", "role": "accumulator", "format": "fp16"}, *BF16]
    counts = macs(custom_fp.apply_recipe(model, rules), torch.randn(2, 8))
    assert counts == {("bf16", "custom_fp.matmul"): 2 * 2 * 8 * 4 + 3 * 2 * 4 * 4}


def test_activations_and_errors_are_operands_of_products_without_rules_of_their_own():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    rules = [
        {"modules": "*", "role": ["activation", "error"], "format": "e5m2"},
        {"modules": "*", "role": "weight", "format": "bf16"},
    ]
    coverage = custom_fp.apply_recipe(model, rules).coverage(model, torch.randn(2, 8))
    with_weight, weight_gradients = 64 + 32 + 32, 64 + 32
    total = with_weight + weight_gradients
    assert coverage == {"bf16 x e5m2": with_weight / total, "e5m2": weight_gradients / total, "float32": 0}


def test_the_count_changes_nothing():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4))
    applied = custom_fp.apply_recipe(model, "fp8_delayed")
    x = torch.randn(6, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    histories = {name: value.clone() for name, value in applied.state_dict().items()}
    random = torch.get_rng_state()
    applied.coverage(model, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, histories[name]) for name, value in applied.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters()) and model.training


def test_operators_without_a_formula_are_named():
    model = Called(lambda self, x: F.bilinear(self.first(x), self.first(x), self.stack), nn.Linear(4, 4))
    model.stack = nn.Parameter(torch.randn(2, 4, 4))
    coverage = custom_fp.apply_recipe(model, BF16).coverage(model, torch.randn(3, 4))
    assert coverage.uncounted == ["aten._trilinear in Called"]


def test_products_without_gradients_do_not_take_the_place_of_others():
    def multiply(self, x):
        y = self.first(x)
        with torch.no_grad():
            x @ x.mT
        x @ x.mT
        return y

    model = Called(multiply, nn.Sequential(nn.Linear(4, 4)))
    found = custom_fp.apply_recipe(model, []).coverage(model, torch.randn(3, 4)).macs
    places = {(product.place, product.operator): count for product, count in found.items()}
    assert places == {("first.0", "aten.addmm"): 48, ("first.0", "aten.mm"): 48, ("Called", "aten.mm"): 72}


def test_several_models_are_counted_together_under_their_names():
    first, second = nn.Sequential(nn.Linear(8, 4)), nn.Linear(4, 2, bias=False)
    rules = [
        custom_fp.apply_recipe(model, [BF16[0] | {"format": fmt}])
        for model, fmt in ((first, "e4m3"), (second, "e5m2"))
    ]
    models = {"": (first, rules[0].placement), "Second.": (second, rules[1].placement)}
    with count_macs(models) as counter:
        hidden = first(torch.ones(3, 8))
        counter.is_paused = True
        first(torch.ones(3, 8))
        counter.is_paused = False
        second(hidden).sum().backward()
    coverage = counter.coverage()
    assert {(x.place, x.label): n for x, n in coverage.macs.items()} == {
        ("0", "e4m3"): 2 * 3 * 8 * 4,  # the input requires no gradient
        ("Second", "e5m2"): 3 * 3 * 4 * 2,
    }
    with count_macs(models) as counter:
        first(torch.ones(3, 8))
    assert counter.coverage().never_called == ["Second"]


def test_counting_may_begin_during_a_forward_pass():
    """Products are assigned only to modules whose forward pass starts after counting has begun."""
    inner, counters = nn.Linear(4, 4), []

    def count(*_: object) -> None:
        counters.append(opened.__enter__())

    model = nn.Sequential(inner, nn.Linear(4, 2))
    opened = count_macs({"": (model, None)})
    inner.register_forward_hook(count)
    model(torch.ones(3, 4))
    opened.__exit__(None, None, None)
    assert {x.place for x in counters[0].coverage().macs} == {"1"} and counters[0].stack == []
