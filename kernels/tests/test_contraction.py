"""Operands are rounded and transformed along the dimension that their product sums over, as rules say."""

import custom_fp
import pytest
import torch
from custom_fp.recipe.layers import layers_of
from custom_fp.recipe.parsing import read_rules
from custom_fp.recipe.placement import Placement
from custom_fp.recipe.quantization_spec import SIGNS
from custom_fp.recipe.rules import Rules
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

OPERANDS = ["input", "weight", "output_gradient"]
MX = {"modules": "*", "role": OPERANDS, "format": "mxfp4"}
WIDE = {"modules": "*", "role": OPERANDS, "format": "e8m20"}


def placed(model, *rules):
    rules = Rules(read_rules("rules", rules), layers_of(model))
    model = Placement(model, rules).model
    rules.check()
    return model


def run(layer, x, error):
    x = x.clone().requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, (x, layer.weight), error)]


def q(x, axis, fmt="mxfp4", size=None, **how):
    if size:
        n = -x.shape[axis] % size
        x = torch.cat(
            [x, x.new_zeros([n if d == axis % x.dim() else s for d, s in enumerate(x.shape)])], axis
        )
        x = custom_fp.hadamard(x, size, seed=SIGNS, axis=axis)
    return custom_fp.quantize(x, fmt, axis=axis, **how)


def linear():
    torch.manual_seed(0)
    return nn.Linear(48, 40, bias=False), torch.randn(5, 9, 48), torch.randn(5, 9, 40)


@pytest.mark.parametrize("size", [None, 16])
def test_blocks_of_a_linear_layer_run_along_each_sum(size):
    layer, x, dy = linear()
    w = layer.weight.detach().clone()
    found = run(placed(layer, MX if size is None else {**MX, "hadamard": size}), x, dy)
    rows, errors = x.reshape(-1, 48), dy.reshape(-1, 40)
    expected = (
        F.linear(q(x, -1, size=size), q(w, -1, size=size)),
        q(dy, -1, size=size) @ q(w, 0, size=size),
        q(errors, 0, size=size).t() @ q(rows, 0, size=size),
    )
    assert all(map(torch.equal, found, expected))
    layer, x, dy = linear()
    sums = {"modules": "*", "role": "accumulator", "format": "e8m3"}
    summed = run(placed(layer, MX if size is None else {**MX, "hadamard": size}, sums), x, dy)
    by_hand = (
        custom_fp.matmul(q(x, -1, size=size), q(w, -1, size=size).t(), accumulator="e8m3"),
        custom_fp.matmul(q(dy, -1, size=size), q(w, 0, size=size), accumulator="e8m3"),
        custom_fp.matmul(q(rows, 0, size=size).t(), q(errors, 0, size=size), accumulator="e8m3").t(),
    )
    assert all(map(torch.equal, summed, by_hand)) and not any(map(torch.equal, summed, expected))


@pytest.mark.parametrize("groups", [1, 2])
def test_blocks_of_a_convolution_run_along_each_sum(groups):
    """Channels of a group forward, output channels of a group for the input's gradient, samples for the weight's."""
    torch.manual_seed(0)
    layer = nn.Conv2d(80, 72, 3, padding=1, stride=2, groups=groups, bias=False)
    x, w = torch.randn(5, 80, 6, 6), layer.weight.detach().clone()
    plain = nn.Conv2d(80, 72, 3, padding=1, stride=2, groups=groups, bias=False)
    dy = torch.randn(layer(x).shape)
    found = run(placed(layer, MX), x, dy)

    def product(x, w, dy, which):
        plain.weight.data = w
        return run(plain, x, dy)[which]

    by_group = lambda t, axis: torch.cat([q(part, axis) for part in t.chunk(groups, axis)], axis)  # noqa: E731
    assert torch.equal(found[0], product(by_group(x, 1), q(w, 1), dy, 0))
    assert torch.equal(found[1], product(x, by_group(w, 0), by_group(dy, 1), 1))
    assert torch.equal(found[2], product(q(x, 0), w, q(dy, 0), 2))


def test_tiles_of_convolution_weights_are_cut_from_channels():
    torch.manual_seed(0)
    layer, x = nn.Conv2d(20, 36, 3, bias=False), torch.randn(2, 20, 5, 5)
    w = layer.weight.detach().clone()
    tiled = custom_fp.quantize(w.movedim((0, 1), (2, 3)), "nvfp4_2d").movedim((2, 3), (0, 1))
    dy = torch.randn(layer(x).shape)
    found = run(placed(layer, {"modules": "*", "role": "weight", "format": "nvfp4_2d"}), x, dy)
    plain = nn.Conv2d(20, 36, 3, bias=False)
    plain.weight.data = tiled
    for one, other in zip(found[:2], run(plain, x, dy)[:2], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("make", [lambda: nn.Linear(20, 12), lambda: nn.Conv1d(20, 12, 3, padding=1)])
def test_a_transform_changes_products_only_by_rounding(make):
    """Operands within 2^-21 of themselves, transformed in sums of 16 within 2^-22 more of a value of at most 4 times
    16: dot products of up to 180 terms below 4 x 4 stay within 180 x 16 x 2^-19."""
    torch.manual_seed(0)
    layer = make()
    x = torch.randn(6, 20) if isinstance(layer, nn.Linear) else torch.randn(6, 20, 9)
    dy = torch.randn(layer(x).shape)
    plain = run(layer, x, dy)
    found = run(placed(layer, {**WIDE, "hadamard": 16}), x, dy)
    for one, other in zip(found, plain, strict=True):
        assert (one - other).abs().max() < 180 * 16 * 2.0**-19 and not torch.equal(one, other)


@pytest.mark.parametrize("role", OPERANDS)
def test_a_transform_of_one_operand_alone_is_refused(role):
    alone = {"modules": "*", "role": role, "format": "mxfp4", "hadamard": 16}
    others = {"modules": "*", "role": OPERANDS, "format": "mxfp4"}
    with pytest.raises(ValueError, match=rf"rules\[0\]: hadamard=16 transforms {role} of .* but not"):
        placed(nn.Linear(4, 4), alone, others)
    both = [{"modules": "*", "role": ["output_gradient", "input"], "product": "weight_gradient"}]
    placed(nn.Linear(4, 4), {**both[0], "format": "mxfp4", "hadamard": 16}, others)


def test_stochastic_rounding_uses_torchs_generator_and_only_in_training():
    layer, x, dy = linear()
    w = layer.weight.detach().clone()
    layer = placed(layer, {"modules": "*", "role": OPERANDS, "format": "e3m1", "rounding": "stochastic"})
    torch.manual_seed(1)
    first, second = run(layer, x, dy), run(layer, x, dy)
    torch.manual_seed(1)
    again = run(layer, x, dy)
    assert all(map(torch.equal, first, again)) and not any(map(torch.equal, first, second))
    state = torch.get_rng_state()
    assert torch.equal(layer.eval()(x), F.linear(q(x, -1, "e3m1"), q(w, -1, "e3m1")))
    assert torch.equal(torch.get_rng_state(), state)
    one = torch.linspace(0, 1, 1000).repeat(100)
    drawn = run(placed(nn.Linear(1, 1, bias=False).requires_grad_(), {
        "modules": "*", "role": "input", "product": "forward", "format": "e2m0", "rounding": "stochastic"}),
        one[:, None], torch.ones(100_000, 1))[0]  # fmt: skip
    weight = (
        drawn.abs().max()
    )  # of 1, which stays 1: the mean of 100 draws of each of 1,000 values is near it
    assert (drawn.view(100, 1000).mean(0).abs() / weight - one[:1000]).abs().max() < 0.15


def test_recomputed_activations_are_rounded_as_before():
    """Activation checkpointing, of both kinds: the weights' gradient needs what the first pass had rounded."""
    rules = {"modules": "*", "role": ["input", "output_gradient"], "format": "e3m1", "rounding": "stochastic"}
    gradients = []
    for how in (None, True, False):
        torch.manual_seed(0)
        net = placed(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), rules)
        x = torch.randn(4, 8, requires_grad=True)
        torch.manual_seed(1)
        y = net(x) if how is None else checkpoint(net, x, use_reentrant=how)
        torch.manual_seed(2)
        y.sum().backward()
        gradients.append([p.grad for p in net.parameters()])
    assert all(torch.equal(a, b) for other in gradients[1:] for a, b in zip(gradients[0], other, strict=True))


def test_compiled_and_batched():
    layer, x, dy = linear()
    layer = placed(layer, {**MX, "hadamard": 16})
    plain = run(layer, x, dy)
    assert all(map(torch.equal, run(torch.compile(layer, fullgraph=True, backend="aot_eager"), x, dy), plain))
    w = {"weight": layer.weight.detach()}

    def loss(w, x, dy):
        return (torch.func.functional_call(layer, w, (x,)) * dy).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(w, x, dy)["weight"]
    for i in range(len(x)):
        torch.testing.assert_close(
            each[i], torch.func.grad(loss)(w, x[i], dy[i])["weight"], rtol=1e-5, atol=1e-5
        )


def test_rules_for_the_first_and_last_layers():
    def net():
        return nn.Sequential(*(nn.Linear(4, 4) for _ in range(7)))

    def reached(**ends):
        model = placed(net(), {"modules": "Linear", "role": "weight", "format": "e4m3", **ends})
        return [i for i, layer in enumerate(model) if getattr(layer, "arithmetic", None)]

    assert (
        reached(last=2) == [5, 6] and reached(first=1, last=1) == [0, 6] and reached(last=9) == list(range(7))
    )
    assert reached(last=0.15) == [5, 6] and reached(last=1 / 7) == [6] and reached() == list(range(7))
    above = placed(net(), {"modules": "*", "last": 0.15, "role": OPERANDS, "format": "bf16"}, MX)
    assert [str(layer.arithmetic.roundings["weight", "forward"]) for layer in above] == ["mxfp4"] * 5 + [
        "bf16"
    ] * 2


@pytest.mark.parametrize(
    "word", ["toward_zero", "nearest_away", "toward_positive", "toward_negative", "to_odd"]
)
@pytest.mark.parametrize("fmt", ["e3m1", "nvfp4", "int8_channel", "hif8"])
def test_a_rule_takes_every_rounding(fmt, word):
    model = placed(
        nn.Linear(32, 8, bias=False), {"modules": "*", "role": "weight", "format": fmt, "rounding": word}
    )
    x, weight = torch.randn(4, 32), model.weight.detach()
    weight.copy_(torch.arange(256).view(8, 32) / 127 - 1)
    wanted = x @ custom_fp.quantize(weight, fmt, rounding=word, axis=1).T
    for training in (True, False):
        assert torch.equal(model.train(training)(x), wanted)
    assert word == "nearest_away" or not torch.equal(wanted, x @ custom_fp.quantize(weight, fmt, axis=1).T)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rounding": "stochastik"}, "rounding=stochastik: choose one of nearest_even, toward_zero, stochastic, stoch"),
        ({"hadamard": 12}, "hadamard=12: must be a power of two, such as 16"),
        ({"hadamard": 16, "role": "result"}, "hadamard=16: only operands can be transformed (input, weight"),
        ({"hadamard": 16, "format": "fp32"}, "hadamard=16: has no effect, because format=fp32 rounds nothing"),
        ({"hadamard": 16, "aps": True}, "aps=true cannot be combined with rounding or hadamard; remove them"),
        ({"role": "parameter", "rounding": "stochastic"}, "parameter requires nearest_even; for weights, use"),
        ({"role": "accumulator", "rounding": "to_odd"}, "requires nearest_even; for sums, use format=fp16-to_odd"),
        ({"last": -1}, "last=-1: must be a number of layers, such as 2, or a share below 1, such as 0.15"),
        ({"first": 1.5}, "first=1.5: must be a number of layers"),
        ({"role": []}, "role=[]: choose one or several of input, weight"),
        ({"role": ["input", "wait"]}, "role=wait: choose one of input"),
        ({"product": ["forward", "back"]}, "product=back: allowed for role weight: forward, input_gradient"),
        ({"optional": "yes"}, "optional=yes: must be true or false"),
        ({"format": 8}, "format=8: "),
        ({"format": "dynamic_tree", "rounding": "stochastic"}, "dynamic_tree rounds to nearest only"),
    ],
)  # fmt: skip
def test_errors(rule, message):
    with pytest.raises(ValueError) as error:
        placed(nn.Linear(4, 4), {"modules": "*", "role": "weight", "format": "e4m3"} | rule)
    assert message in str(error.value) and str(error.value).startswith("rules[0]")
