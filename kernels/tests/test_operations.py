"""Test the rounding of operations that a module calls in its forward.

The operations are rounded like layers. Calls to the same functions in other modules are not rounded.
"""

import copy
import operator
import pickle
from multiprocessing.reduction import ForkingPickler

import custom_fp
import pytest
import torch
from custom_fp.layers.contractions import Contraction
from custom_fp.recipe.files import load, with_ingredients
from custom_fp.recipe.layers import layers_of
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

OPERANDS = ["input", "weight", "output_gradient"]
BF16 = {"role": OPERANDS, "format": "bf16"}
RULES = [
    {"modules": ["*", "matmul()", "linear()"], "role": OPERANDS, "format": "nvfp4", "optional": True},
    {"modules": ["*", "matmul()", "linear()"], "role": "result", "format": "bf16", "optional": True},
]


class Called(nn.Module):
    """A module whose forward calls a given function with the module and the inputs."""

    def __init__(self, function, **children):
        super().__init__()
        self.function = function
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *x):
        return self.function(self, *x)


class Conv1D(nn.Module):
    """The linear layer of transformers' GPT-2, whose weight has the shape (inputs, outputs)."""

    def __init__(self, linear):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().t().contiguous())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


def gradients(model, *inputs):
    """Return the output of a model, and the gradients of its inputs and parameters."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(1)
    y = model(*inputs)
    error = torch.linspace(-1, 1, y.numel()).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, [*inputs, *model.parameters()], error)]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "fp8_block128", "fp8_tensorwise", "int8"])
def test_addmm_computes_the_same_bits_as_a_linear_layer(recipe):
    torch.manual_seed(0)
    linear, x = nn.Linear(32, 48), torch.randn(3, 16, 32)
    how = {"rounding": "nearest_even", "hadamard": None, "bf16_layers": 0} if recipe == "nvfp4" else {}
    rules = with_ingredients(recipe, load(recipe), how)["rules"]
    rules = [rule | {"modules": ["*", "matmul()"]} for rule in rules if "optional" not in rule]
    conv1d = nn.Sequential(Conv1D(linear))
    custom_fp.apply_recipe(conv1d, [rule | {"optional": True} for rule in rules])
    custom_fp.apply_recipe(linear, [rule | {"optional": True} for rule in rules])
    y, dx, dw, db = gradients(linear, x)
    assert_same(gradients(conv1d, x), [y, dx, dw.t(), db])


def test_attention_written_with_matmul_computes_the_same_bits_as_scaled_dot_product_attention():
    def written_out(_, q, k, v):
        return torch.matmul((q @ k.transpose(2, 3) * 0.25).softmax(-1), v)

    def fused(_, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 32, 16) for _ in range(3))
    found = []
    for function, name in ((written_out, "matmul()"), (fused, "scaled_dot_product_attention")):
        model = nn.Sequential(nn.Identity(), Called(function))[1]
        custom_fp.apply_recipe(model, [rule | {"modules": name} for rule in RULES])
        found.append(gradients(model, q, k, v))
    assert_same(*found)


def test_a_tied_head_computes_the_same_bits_as_a_layer():
    torch.manual_seed(0)
    head, x = nn.Linear(32, 48, bias=False), torch.randn(3, 16, 32)
    tied = Called(lambda self, x: F.linear(x, self.table.weight), table=nn.Embedding(48, 32))
    tied.table.weight = nn.Parameter(head.weight.detach().clone())
    custom_fp.apply_recipe(head, RULES)
    applied = custom_fp.apply_recipe(tied, RULES)
    assert applied.rounded == {}
    assert_same(gradients(tied, x), gradients(head, x))
    assert list(applied.rounded) == ["linear()"] and applied.untouched == {"table": "Embedding"}


SHAPES = [
    (torch.matmul, (4, 32), (32, 5)),
    (torch.matmul, (2, 3, 4, 32), (32, 5)),
    (torch.matmul, (3, 4, 32), (2, 1, 32, 5)),
    (torch.matmul, (32,), (2, 32, 5)),
    (torch.matmul, (2, 4, 32), (32,)),
    (torch.matmul, (32,), (32,)),
    (torch.mm, (4, 32), (32, 5)),
    (torch.mv, (4, 32), (32,)),
    (torch.bmm, (2, 4, 32), (2, 32, 5)),
    (lambda a, b: a @ b, (2, 4, 32), (32, 5)),
    (torch.Tensor.__rmatmul__, (32, 5), (4, 32)),
    (lambda a, b: a.matmul(b), (4, 32), (2, 32, 5)),
    (lambda a, b: torch.bmm(input=a, mat2=b), (2, 4, 32), (2, 32, 5)),
    (lambda a, b: torch.baddbmm(torch.ones(5), a, b), (2, 4, 32), (2, 32, 5)),
    (lambda a, b: torch.ones(4, 5).addmm(a, b, beta=0.5, alpha=2), (4, 32), (32, 5)),
    (lambda a, b: torch.full((2, 4, 5), torch.nan).baddbmm(a, b, beta=0), (2, 4, 32), (2, 32, 5)),
    (lambda a, b: torch.baddbmm(torch.ones(2, 4, 5), a, b, alpha=0.25), (2, 4, 32), (2, 32, 5)),
]


@pytest.mark.parametrize("accumulator", [None, "e8m23"])
@pytest.mark.parametrize(("function", "a", "b"), SHAPES)
def test_each_form_of_a_matrix_product_reads_rounded_operands(function, a, b, accumulator):
    """The output equals that of the PyTorch function applied to operands rounded along the summed dimension.

    All values are multiples of 1/4 up to 6, so products and sums are exact in any order.
    """
    torch.manual_seed(0)
    a, b = (torch.randint(-24, 25, shape) / 4 for shape in (a, b))
    rules = [{"modules": "matmul()", "role": ["input", "weight"], "format": "mxfp4"}]
    if accumulator:
        rules.append({"modules": "matmul()", "role": "accumulator", "format": accumulator})
    model = Called(lambda _, *x: function(*x))
    applied = custom_fp.apply_recipe(model, rules)
    first, second = (b, a) if function is torch.Tensor.__rmatmul__ else (a, b)
    rounded = [
        custom_fp.quantize(first, "mxfp4", axis=first.dim() - 1),
        custom_fp.quantize(second, "mxfp4", axis=max(second.dim() - 2, 0)),
    ]
    expected = function(*(rounded if first is a else rounded[::-1]))
    assert torch.equal(model(a, b), expected) and not torch.equal(expected, function(a, b))
    applied.check_called()


def test_tensors_that_no_rule_can_round_are_left_to_pytorch():
    model = Called(lambda _, a, b: torch.matmul(a, b))
    custom_fp.apply_recipe(model, [{"modules": "matmul()", "role": "input", "format": "e3m0"}])
    a, b = torch.arange(12).view(3, 4), torch.arange(8).view(4, 2)
    assert torch.equal(model(a, b), a @ b)
    x = torch.randn(3, 3)
    assert torch.equal(model(x.to_sparse(), x), x.to_sparse() @ x)
    assert torch.equal(model(torch.eye(3, dtype=torch.complex64), x + 0j), x + 0j)
    with pytest.raises(RuntimeError, match="dtype"):
        model(x.double(), x)
    out = torch.empty(3, 3)
    model = Called(lambda _, a, b: torch.mm(a, b, out=out))
    custom_fp.apply_recipe(model, [{"modules": "matmul()", "role": "input", "format": "e3m0"}])
    assert torch.equal(model(x, x), x @ x)


def test_under_autocast_operands_may_have_different_dtypes():
    model = Called(lambda _, a, b: a @ b)
    custom_fp.apply_recipe(model, [{"modules": "matmul()", "role": ["input", "weight"], "format": "e4m3"}])
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(a.bfloat16(), b)
    assert y.dtype == torch.bfloat16
    expected = custom_fp.quantize(a.bfloat16().float(), "e4m3") @ custom_fp.quantize(b, "e4m3")
    assert torch.equal(y, expected.bfloat16())


class Nested(nn.Module):
    """A module whose forward calls submodules and also multiplies matrices itself."""

    def __init__(self, rounded=True):
        super().__init__()
        self.linear, self.conv = nn.Linear(8, 8), nn.Conv1d(4, 4, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.inner = Called(lambda _, x: x @ x.mT)

    def forward(self, x):
        y = self.conv(self.linear(x))
        y = self.attention(y, y, y)[0]
        return self.inner(y) + y @ x.mT


def test_a_rule_does_not_round_the_calls_of_other_modules():
    """A rule rounds only calls in the forward of the selected modules, not calls in other modules.

    Rules for `linear()` do not affect PyTorch's own layers, although these layers also call F.linear.
    """
    torch.manual_seed(0)
    net, x = Nested(), torch.randn(2, 4, 8)
    plain = copy.deepcopy(net)
    rules = [{"modules": "scaled_dot_product_attention", "role": OPERANDS, "format": "e3m0"}]
    rules.append({"modules": "linear()", "role": "weight", "format": "e3m0", "optional": True})
    custom_fp.apply_recipe(net, rules)
    assert torch.equal(plain.conv(plain.linear(x)), net.conv(net.linear(x)))
    assert not torch.equal(net(x), plain(x))

    net = copy.deepcopy(plain)
    custom_fp.apply_recipe(net, [{"modules": ["linear()", "*.matmul()"], "role": OPERANDS, "format": "e3m0"}])
    y = plain.conv(plain.linear(x))
    y = plain.attention(y, y, y)[0]
    rounded = custom_fp.quantize(y, "e3m0")
    assert torch.equal(net(x), rounded @ rounded.mT + y @ x.mT)


def test_products_of_rounded_layers_are_not_rounded_again():
    torch.manual_seed(0)
    net, x = Nested(), torch.randn(2, 4, 8)
    layers = [{"modules": ["*", "MultiheadAttention"], "role": OPERANDS, "format": "e3m2"}]
    other = copy.deepcopy(net)
    custom_fp.apply_recipe(net, layers)
    custom_fp.apply_recipe(other, [*layers, {"modules": ["linear()", "add.matmul()"], "role": OPERANDS,
                                             "format": "e2m1", "optional": True}])  # fmt: skip
    assert_same(gradients(other, x), gradients(net, x))


def test_a_layer_called_linear_is_not_the_operation_linear():
    model = Called(lambda self, x: self.linear(x) + F.linear(x, self.linear.weight), linear=nn.Linear(8, 8))
    x, plain = torch.randn(3, 8), copy.deepcopy(model)
    layer_only, call_only = copy.deepcopy(model), copy.deepcopy(model)
    custom_fp.apply_recipe(layer_only, [{"modules": "linear", "role": "weight", "format": "e3m0"}])
    applied = custom_fp.apply_recipe(call_only, [{"modules": "linear()", "role": "weight", "format": "e3m0"}])
    weight, bias = plain.linear.weight, plain.linear.bias
    rounded = custom_fp.quantize(weight, "e3m0")
    assert torch.equal(layer_only(x), F.linear(x, rounded) + bias + F.linear(x, weight))
    assert torch.equal(call_only(x), plain.linear(x) + F.linear(x, rounded))
    assert list(applied.rounded) == ["linear()"]


@pytest.mark.parametrize("pattern", ["*", "inner", "inner.*", "Called", "*inner*", "inner.matmul", "matmul"])
def test_only_patterns_with_parentheses_select_operations(pattern):
    net = Nested()
    plain = copy.deepcopy(net)
    rules = [{"modules": pattern, "role": "weight", "format": "e3m0", "optional": True}]
    custom_fp.apply_recipe(net, rules)
    y = torch.randn(2, 4, 8)
    assert torch.equal(net.inner(y), plain.inner(y))
    custom_fp.apply_recipe(plain, [rules[0] | {"modules": "inner.matmul()"}])
    assert not torch.equal(net.inner(y), plain.inner(y))


def test_models_with_rounded_operations_can_be_copied_pickled_compiled_and_batched():
    torch.manual_seed(0)
    net, x = nn.Sequential(Conv1D(nn.Linear(8, 8)), Conv1D(nn.Linear(8, 8))), torch.randn(2, 4, 8)
    plain = copy.deepcopy(net)
    custom_fp.apply_recipe(net, [{"modules": "matmul()", "role": OPERANDS, "format": "e4m3"}])
    y = net(x)
    assert not torch.equal(y, plain(x))
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), plain(x))
    assert net.state_dict().keys() == plain.state_dict().keys()
    for other in (copy.deepcopy(net), torch.compile(net, fullgraph=True, backend="eager")):
        assert_same(gradients(other, x), gradients(net, x))
    assert torch.equal(torch.func.vmap(net)(x[:, None])[:, 0], y)


def test_rules_for_operations_that_are_never_called_are_refused():
    net = Nested()
    rules = [{"modules": "linear()", "role": "weight", "format": "e4m3"}]
    applied = custom_fp.apply_recipe(net, rules)
    net(torch.randn(2, 4, 8))
    with pytest.raises(ValueError, match=r"none of the modules selected by this rule calls linear\(\)"):
        applied.check_called()
    with pytest.raises(ValueError, match=r"matches no layer"):
        custom_fp.apply_recipe(nn.Sequential(nn.Linear(2, 2)), rules)


def test_coverage_counts_operations():
    model = Called(
        lambda self, x: F.linear((x @ x.mT) @ x, self.first.weight) @ self.other, first=nn.Linear(4, 4)
    )
    model.other = nn.Parameter(torch.randn(4, 4))
    rules = [
        {"modules": "matmul()", "role": OPERANDS, "format": "e4m3"},
        {"modules": ["*", "linear()"], "role": OPERANDS, "format": "bf16"},
    ]
    coverage = custom_fp.apply_recipe(model, rules).coverage(model, torch.randn(3, 4, requires_grad=True))
    matmul, linear = 3 * (3 * 4 * 3 * 2 + 3 * 4 * 4), 3 * 3 * 4 * 4
    assert coverage == {"e4m3": matmul / (matmul + linear), "bf16": linear / (matmul + linear), "float32": 0}
    assert {product.place for product in coverage.macs} == {"matmul()", "linear()"}
    assert coverage.never_called == ["first"]


def equations():
    """Return einsum equations, each with the shapes of its two operands."""
    return [
        ("ij,jk->ik", (4, 32), (32, 5)),
        ("ij,kj", (4, 32), (5, 32)),
        ("bij,bjk->bik", (2, 4, 32), (2, 32, 5)),
        ("bhid, bjhd -> bihj", (2, 3, 4, 32), (2, 5, 3, 32)),
        ("...ij,jk->...ik", (2, 3, 4, 32), (32, 5)),
        ("...id,...jd->...ij", (3, 4, 32), (2, 1, 5, 32)),
        ("bchw,oc->bohw", (2, 32, 3, 4), (6, 32)),
        ("bijk,jkl->bil", (2, 3, 4, 8), (4, 8, 5)),
        ("bi,bi->b", (4, 32), (4, 32)),
    ]


@pytest.mark.parametrize(("equation", "a", "b"), equations())
def test_einsum_reads_operands_that_are_rounded_along_the_summed_dimensions(equation, a, b):
    """All values are multiples of 1/4 up to 6, so forward products and sums are exact in any order.

    Each gradient is a sum of at most 72 products of such a value and an output gradient of at most 1. Rounding to e8m22
    changes the output gradient by at most 2^-23. Each of the additions rounds a sum of at most 432 by at most 2^-24 of
    it. So the gradients differ by at most 72 x 6 x 2^-23 + 72 x 432 x 2^-24 < 2e-3.
    """
    torch.manual_seed(0)
    a, b = (torch.randint(-24, 25, shape) / 4 for shape in (a, b))
    model = Called(lambda _, *x: torch.einsum(equation, *x))
    plain = gradients(model, a, b)
    custom_fp.apply_recipe(model, [{"modules": "einsum()", "role": OPERANDS, "format": "e8m22"}])
    found = gradients(model, a, b)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-3)
    model = Called(lambda _, *x: torch.einsum(equation, *x))
    custom_fp.apply_recipe(model, [{"modules": "einsum()", "role": ["input", "weight"], "format": "mxfp4"}])
    contraction = Contraction.parse(equation, [a.dim(), b.dim()])
    rounded = []
    for x, dimensions in zip((a, b), contraction.operands, strict=True):
        order = [dimensions.index(d) for d in dimensions if d not in contraction.summed]
        order += [dimensions.index(d) for d in contraction.summed]
        moved = x.permute(order)
        blocks = moved.reshape(*moved.shape[: len(order) - len(contraction.summed)], -1)
        values = custom_fp.quantize(blocks, "mxfp4", axis=blocks.dim() - 1).view(moved.shape)
        rounded.append(values.permute([order.index(i) for i in range(len(order))]))
    expected = torch.einsum(equation, *rounded)
    assert torch.equal(model(a, b), expected) and not torch.equal(expected, plain[0])


@pytest.mark.parametrize("equation", ["ii,ij->ij", "ij,jk->k", "i,j->ij", "ij,ij,ij->ij", "ij->ji"])
def test_equations_that_are_not_matrix_products_are_left_to_pytorch(equation):
    """An outer product has no summed dimension. The other equations are not matrix products of two tensors."""
    sizes = [[4] * len(x) for x in equation.partition("->")[0].split(",")]
    tensors = [torch.randn(size) for size in sizes]
    model = Called(lambda _, *x: torch.einsum(equation, *x))
    custom_fp.apply_recipe(model, [{"modules": "einsum()", "role": ["input", "weight"], "format": "e3m0"}])
    assert torch.equal(model(*tensors), torch.einsum(equation, *tensors))
    model = Called(lambda _, a, b: a @ b)
    custom_fp.apply_recipe(model, [{"modules": "matmul()", "role": ["input", "weight"], "format": "e3m0"}])
    a, b = torch.randn(3, 4, 1), torch.randn(1, 5)
    assert torch.equal(model(a, b), a @ b)


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, padding=1), (2, 4, 10)),
    (nn.Conv1d(4, 4, 4, groups=4, padding=3, bias=False), (2, 4, 10)),
    (nn.Conv2d(4, 6, 3, stride=2, dilation=(1, 2), groups=2), (2, 4, 9, 9)),
    (nn.Conv2d(4, 6, (4, 3), padding="same"), (2, 4, 9, 9)),
    (nn.Conv3d(4, 2, 2, padding="valid"), (4, 5, 6, 7)),
]


@pytest.mark.parametrize("accumulator", [None, "e5m10"])
@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=str)
def test_functional_convolutions_compute_the_same_bits_as_layers(layer, shape, accumulator):
    function = getattr(F, type(layer).__name__.lower())

    def convolve(self, x):
        settings = layer.stride, layer.padding, layer.dilation, layer.groups
        return function(x, self.weight, self.bias, *settings)

    called = Called(convolve)
    called.weight, called.bias = copy.deepcopy(layer.weight), copy.deepcopy(layer.bias)
    layer, x = copy.deepcopy(layer), torch.randn(shape)
    rules = [rule | {"modules": ["*", "conv()"]} for rule in RULES]
    if accumulator:
        rules.append({"modules": ["*", "conv()"], "role": "accumulator", "format": accumulator})
    custom_fp.apply_recipe(layer, rules)
    custom_fp.apply_recipe(called, rules)
    assert_same(gradients(called, x), gradients(layer, x))


class Experts(nn.Module):
    """Experts whose weights are stacked in one tensor, as in transformers and torchtitan.

    One grouped matrix product computes all experts.
    """

    def __init__(self, experts, inputs, outputs, function=torch._grouped_mm):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, outputs, inputs))
        self.function = function

    def forward(self, x, ends):
        return self.function(x, self.weight.mT, offs=ends)


class Loop(nn.Module):
    """The experts of an `Experts` module as separate Linear layers with the same weights."""

    def __init__(self, experts):
        super().__init__()
        inputs, outputs = experts.weight.shape[2:0:-1]
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for _ in experts.weight)
        for layer, weight in zip(self.layers, experts.weight.detach(), strict=True):
            layer.weight = nn.Parameter(weight.clone())

    def forward(self, x, ends):
        rows = x[: ends[-1]].split(ends.diff(prepend=torch.zeros(1, dtype=torch.int32)).tolist())
        return torch.cat([layer(part) for layer, part in zip(self.layers, rows, strict=True)])


# The index after the last row of each expert. The second expert gets no rows, and rows from 55 on go to no expert.
ENDS = torch.tensor([20, 20, 55], dtype=torch.int32)
GROUPED_RECIPES = {
    "blocks of 16 with transforms": {"format": "nvfp4", "hadamard": 16},
    "tiles": {"format": "nvfp4_2d"},
    "one scale for each expert": {"format": "fp8_tensor"},
    "one scale for each row": {"format": "int8_row"},
    "blocks of 32": {"format": "mxfp8_e4m3_rceil"},
    "no scales": {"format": "e4m3"},
}


@pytest.mark.parametrize("how", GROUPED_RECIPES.values(), ids=list(GROUPED_RECIPES))
def test_grouped_products_compute_the_same_bits_as_a_loop_of_linear_layers(how):
    torch.manual_seed(0)
    experts = Experts(3, 32, 48, getattr(F, "grouped_mm", torch._grouped_mm))
    loop, x = Loop(experts), torch.randn(60, 32)
    rules = [{"modules": ["*", "grouped_mm()"], "role": OPERANDS, **how}]
    rules.append({"modules": ["*", "grouped_mm()"], "role": "result", "format": "bf16"})
    for model in (experts, loop):
        custom_fp.apply_recipe(model, [rule | {"optional": True} for rule in rules])
    experts_first = Called(lambda self, x: self.experts(x, ENDS)[: ENDS[-1]], experts=experts)
    y, dx, dw = gradients(experts_first, x)
    expected, expected_dx, *each_dw = gradients(Called(lambda self, x: self.loop(x, ENDS), loop=loop), x)
    assert_same([y, dx, dw], [expected, expected_dx, torch.stack(each_dw)])


def test_all_forms_of_grouped_products_equal_those_of_pytorch():
    """The tolerance covers a different summation order and the rounding of results to e8m22.

    There are at most 16 products, and their partial sums are below 16. With another order of summation, each of these
    sums may have an error of up to 16 x 2^-24, which adds up to 16 x 16 x 2^-24 = 2^-16. Rounding changes a result
    below 16 by less than 16 x 2^-23 = 2^-19.
    """
    torch.manual_seed(0)
    ends, ordered = torch.tensor([4, 4, 12], dtype=torch.int32), torch.tensor([3, 8, 12], dtype=torch.int32)
    rows, columns = torch.randn(12, 16), torch.randn(16, 12)
    stack, matrix = torch.randn(3, 16, 8), torch.randn(12, 8)
    for a, b, offs in [
        (rows, stack, ends),
        (rows.t(), matrix, ordered),
        (torch.randn(3, 4, 16), columns, ends),
        (torch.randn(3, 4, 16), stack, None),
    ]:
        model = Called(lambda _, a, b, offs=offs: torch._grouped_mm(a, b, offs=offs))
        expected = gradients(model, a, b)
        applied = custom_fp.apply_recipe(
            model, [{"modules": "grouped_mm()", "role": "result", "format": "e8m22"}]
        )
        found = gradients(model, a, b)
        applied.check_called()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2**-15)


def test_rows_without_an_expert_give_zeros_and_do_not_affect_other_rows():
    experts, x = Experts(3, 16, 8), torch.randn(60, 16)
    custom_fp.apply_recipe(experts, [{"modules": "grouped_mm()", "role": OPERANDS, "format": "fp8_tensor"}])
    y = experts(x, ENDS)
    x[ENDS[-1] :] = torch.nan
    assert torch.equal(experts(x, ENDS), y) and not y[ENDS[-1] :].any()


def test_coverage_counts_the_products_of_experts():
    model = Called(lambda self, x: self.experts(self.first(x), ENDS), first=nn.Linear(16, 16, bias=False),
                   experts=Experts(3, 16, 8))  # fmt: skip
    rules = [{"modules": "grouped_mm()", "role": OPERANDS, "format": "nvfp4"}, BF16 | {"modules": "*"}]
    coverage = custom_fp.apply_recipe(model, rules).coverage(model, torch.randn(60, 16))
    experts, first = 3 * 55 * 16 * 8, 2 * 60 * 16 * 16
    assert coverage == {"nvfp4": experts / (experts + first), "bf16": first / (experts + first), "float32": 0}
    assert {product.place for product in coverage.macs} == {"first", "experts.grouped_mm()"}


def test_compiled_experts_compute_the_same_bits():
    torch.manual_seed(0)
    experts, x = Experts(3, 16, 8), torch.randn(55, 16)
    custom_fp.apply_recipe(experts, [{"modules": "grouped_mm()", "role": OPERANDS, "format": "e4m3"}])
    assert torch.equal(torch.compile(experts, backend="eager")(x, ENDS), experts(x, ENDS))


def test_a_recipe_may_apply_to_all_products():
    """With `operations: true`, rules for '*' also select all operations, including attention.

    Rules that set `last` still select only layers. If `operations` is a list, rules for '*' select only the
    operations in the list, in addition to layers.
    """

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
            self.experts = Experts(3, 16, 16)

        def forward(self, x):
            y = self.experts(self.first(x), ENDS)[:48]
            y = F.scaled_dot_product_attention(y[None], y[None], y[None])[0]
            return self.last(
                torch.einsum("ij,jk->ik", y @ y.mT, F.conv1d(y.t()[None], y.new_ones(16, 16, 1))[0].t())
            )

    recipe = {
        "rules": [
            {"modules": ["*"], "last": 1, **BF16},
            {"modules": ["*"], "role": OPERANDS, "format": "nvfp4"},
            {"modules": "scaled_dot_product_attention", "optional": True, **BF16},
        ]
    }
    places = {}
    for operations in (False, True, ["grouped_mm()"]):
        model, x = Model(), torch.randn(60, 16)
        coverage = custom_fp.apply_recipe(model, recipe, operations=operations).coverage(model, x)
        found = {product.place: product.label for product in coverage.macs}
        places[str(operations)] = {place for place, label in found.items() if label == "nvfp4"}
        assert found["last"] == "bf16"
        attention = "nvfp4" if operations is True else "bf16"
        assert found["scores"] == found["values"] == attention
        assert (coverage["float32"] == 0) == (operations is True)
    everything = {"first", "experts.grouped_mm()", "scores", "values", "matmul()", "einsum()", "conv()"}
    assert places == {
        "False": {"first"},
        "True": everything,
        "['grouped_mm()']": {"first", "experts.grouped_mm()"},
    }
    applied = custom_fp.apply_recipe(Model(), recipe | {"operations": True})
    assert "experts.grouped_mm()" in applied.at_first
    with pytest.raises(
        ValueError, match=r"recipe.operations=\['matmul'\]: must be true, false, or a list of"
    ):
        custom_fp.apply_recipe(Model(), recipe | {"operations": ["matmul"]})


def test_rules_for_a_part_of_the_model_select_its_operations_too():
    """The router calls F.linear, as in transformers' Mixtral. The rule for routers must also select this call."""

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = Called(lambda self, x: F.linear(x, self.weight))
            self.gate.weight = nn.Parameter(torch.randn(3, 16))
            self.experts = Experts(3, 16, 16)

        def forward(self, x):
            return self.experts(x, ENDS) * self.gate(x).amax(-1, keepdim=True)

    recipe = [
        {"modules": ["router"], "optional": True, **BF16},
        {"modules": "*", "role": OPERANDS, "format": "nvfp4"},
    ]
    model = nn.Sequential(nn.Linear(16, 16), Mixture())
    coverage = custom_fp.apply_recipe(model, recipe, operations=True).coverage(model, torch.randn(60, 16))
    found = {product.place: product.label for product in coverage.macs}
    assert found == {"0": "nvfp4", "1.experts.grouped_mm()": "nvfp4", "1.gate.linear()": "bf16"}


def test_first_and_last_count_operations_only_among_themselves():
    model = nn.Sequential(*[Conv1D(nn.Linear(8, 8)) for _ in range(3)], nn.Linear(8, 8))
    applied = custom_fp.apply_recipe(
        copy.deepcopy(model), [{"modules": ["*", "matmul()"], "last": 2, **BF16}]
    )
    assert list(applied.at_first) == ["3"]
    applied = custom_fp.apply_recipe(copy.deepcopy(model), [{"modules": "matmul()", "last": 2, **BF16}])
    assert list(applied.at_first) == ["1.matmul()", "2.matmul()"]


class RMSNorm(nn.Module):
    """A normalization layer that multiplies by 1 + weight, as in transformers' Gemma."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight.float())


NORMS = [
    (nn.LayerNorm(64), (3, 64)),
    (nn.GroupNorm(2, 64), (3, 64, 5)),
    (nn.BatchNorm1d(64), (7, 64)),
    (RMSNorm(64), (3, 64)),
]


@pytest.mark.parametrize(("norm", "shape"), NORMS, ids=lambda value: type(value).__name__)
def test_the_weights_of_normalization_layers_are_rounded_when_they_are_used(norm, shape):
    torch.manual_seed(0)
    net = nn.Sequential(copy.deepcopy(norm))
    torch.nn.init.normal_(net[0].weight)
    x, rounded = torch.randn(shape), copy.deepcopy(net)
    weight = net[0].weight
    rounded[0].weight.data = custom_fp.quantize(weight.detach(), "mxfp8_e4m3", axis=0)
    before = weight.detach().clone()
    expected = gradients(rounded, x)
    rules = [{"modules": type(norm).__name__, "role": "weight", "format": "mxfp8_e4m3"}]
    applied = custom_fp.apply_recipe(net, rules)
    assert_same(gradients(net, x), expected)
    assert net[0].weight is weight and torch.equal(weight, before)
    assert dict(net.named_parameters()).keys() == dict(rounded.named_parameters()).keys()
    for other in (copy.deepcopy(net), torch.compile(net, fullgraph=True, backend="eager")):
        assert_same(gradients(other, x), expected)
    assert applied.rounded == {"0": "weight of forward=mxfp8_e4m3"} and not applied.untouched
    assert applied.coverage(net, x).never_called == []


@pytest.mark.parametrize("pattern", ["*", "norm.*", "*attention*", "norm"])
def test_only_rules_that_name_normalization_layers_round_their_weights(pattern):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.router = nn.LayerNorm(8), nn.Linear(8, 2)

        def forward(self, x):
            return self.router(self.norm1(x))

    nets = nn.ModuleDict({"norm": Net(), "attention": Net()})
    rules = [{"modules": [pattern, "router"], "role": "weight", "format": "e3m0", "optional": True}]
    applied = custom_fp.apply_recipe(nets, rules)
    assert not any("norm1" in name for name in applied.rounded)
    named = custom_fp.apply_recipe(Net(), [{"modules": "*norm?", "role": "weight", "format": "e3m0"}])
    assert list(named.rounded) == ["norm1"]


RESULTS = [
    ("softmax()", lambda x, y: F.softmax(x, -1)),
    ("softmax()", lambda x, y: torch.softmax(x, dim=-1)),
    ("softmax()", lambda x, y: x.softmax(-1)),
    ("add()", lambda x, y: x + y),
    ("add()", lambda x, y: torch.add(x, y, alpha=2)),
    ("add()", lambda x, y: (x * 1).add_(y)),
    ("add()", lambda x, y: operator.iadd(x * 1, y)),
    ("cross_entropy()", lambda x, y: F.cross_entropy(x, y.softmax(-1), reduction="none")),
]


@pytest.mark.parametrize(("name", "function"), RESULTS)
def test_results_of_functions_and_their_gradients_are_rounded(name, function):
    torch.manual_seed(0)
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    plain, model = (Called(lambda _, *xs: function(*xs)) for _ in range(2))
    expected = custom_fp.quantize(plain(x, y), "e4m3")
    rules = [
        {"modules": name, "role": "activation", "format": "e4m3"},
        {"modules": name, "role": "error", "format": "e3m0"},
    ]
    applied = custom_fp.apply_recipe(model, rules)
    assert torch.equal(model(x, y), expected)
    applied.check_called()
    x.requires_grad_()
    error = torch.randn_like(expected)
    (found,) = torch.autograd.grad(model(x, y), x, error)
    (dx,) = torch.autograd.grad(plain(x, y), x, custom_fp.quantize(error, "e3m0"))
    assert torch.equal(found, dx)
    torch._dynamo.reset()  # Each case recompiles the same code, and PyTorch limits the number of recompilations.
    assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(x, y), expected)


def test_rules_for_activations_do_not_select_functions_by_a_wildcard():
    model = Called(lambda _, x: (x + x).softmax(-1))
    custom_fp.apply_recipe(model, [{"modules": "*", "role": ["activation", "error"], "format": "e3m0",
                                    "optional": True}])  # fmt: skip
    x = torch.randn(3, 8)
    expected = custom_fp.quantize(x, "e3m0")
    assert torch.equal(model(x), custom_fp.quantize((expected + expected).softmax(-1), "e3m0"))
    model = Called(lambda _, x: (x + 1) + torch.arange(3))
    custom_fp.apply_recipe(model, [{"modules": "add()", "role": "activation", "format": "e3m0"}])
    x = torch.randn(3)
    assert torch.equal(model(x), x + 1 + torch.arange(3))


def test_layers_are_recognized_in_a_model_with_a_recipe():
    """`layers_of` returns the same layers and operations after a recipe has replaced the classes of the modules."""

    def descriptions(model):
        return [(x.names, x.kind, x.multiplies, x.must_be_named, x.rounding_class) for x in layers_of(model)]

    net = nn.Sequential(Nested(), nn.LayerNorm(8), nn.Embedding(5, 8))
    before = descriptions(net)
    rules = [
        {"modules": ["*", "LayerNorm", "Embedding", "MultiheadAttention"], "role": "weight", "format": "e4m3"}
    ]
    custom_fp.apply_recipe(net, rules, operations=True)
    assert descriptions(net) == before


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + (self.linear(x) @ x.mT) @ x


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_modules_that_are_checkpointed_compute_the_same_bits(use_reentrant):
    def run(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=use_reentrant) if self.is_checkpointed else block(x)
        return x @ x.mT

    torch.manual_seed(0)
    x, model = torch.randn(2, 4, 8), Called(run, blocks=nn.ModuleList([Residual(), Residual()]))
    custom_fp.apply_recipe(model, "mxfp8", operations=True)
    model.is_checkpointed = False
    expected = gradients(model, x)
    model.is_checkpointed = True
    x.requires_grad_()
    model(x).backward(torch.linspace(-1, 1, 32).view(2, 4, 4))
    assert_same([x.grad, *(p.grad for p in model.parameters())], expected[1:])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_modules_without_python_code_or_weights_are_left_alone():
    """A recipe rounds neither TorchScript modules nor lazy layers, whose size is not yet known."""
    for operations in (False, True):
        model = nn.Sequential(
            nn.Linear(8, 8), torch.jit.trace(Residual(), torch.randn(2, 4, 8)), nn.LazyLinear(4)
        )
        applied = custom_fp.apply_recipe(model, "mxfp8", operations=operations)
        assert model(torch.randn(2, 4, 8)).shape == (2, 4, 4)
        assert list(applied.rounded) == ["0"]


def test_a_model_sent_to_another_process_keeps_its_rounded_operations():
    net, x = nn.Sequential(Conv1D(nn.Linear(8, 8))), torch.randn(2, 8)
    custom_fp.apply_recipe(net, [{"modules": "matmul()", "role": OPERANDS, "format": "e4m3"}])
    found = pickle.loads(ForkingPickler.dumps(net))
    assert torch.equal(found(x), net(x)) and found is not net
