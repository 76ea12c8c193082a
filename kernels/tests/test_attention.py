"""Attention under rules equals torch's if nothing is rounded, and otherwise products that are rounded step by step."""

import copy
import math
import pickle
from functools import partial

import custom_fp
import pytest
import torch
from custom_fp.layers.attention import attend, probabilities
from custom_fp.layers.multihead_attention import QuantMultiheadAttention
from custom_fp.layers.products import Arithmetic, Nearest
from custom_fp.recipe.layers import layers_of
from custom_fp.recipe.parsing import read_rules
from custom_fp.recipe.placement import Placement
from custom_fp.recipe.rules import Rules
from torch import nn
from torch.nn import functional as F

SDPA = "scaled_dot_product_attention"
ALL = ["input", "weight", "output_gradient"]


def placed(model, *rules):
    rules = Rules(read_rules("rules", rules), layers_of(model))
    placement = Placement(model, rules)
    rules.check()
    return placement


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.symbols = nn.Embedding(5, 8)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, index):
        return self.blocks(self.symbols(index))


INDEX = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 1, 3, 0, 2, 4]])
MASK = torch.tensor([[True, False, True, True, True, False, True]] * 4 + [[False] * 7])


MASKS = [
    {"attn_mask": MASK},
    {"attn_mask": torch.linspace(-2, 2, 70).view(2, 1, 5, 7)},
    {"attn_mask": MASK.float().log()},
]


@pytest.mark.parametrize("how", [{}, {"is_causal": True}, {"scale": 0.3}, *MASKS])
def test_attention_without_rounding_equals_torchs(how):
    """Sums of 8 and 7 terms of size one, a softmax of 7 and its backward: each rounding errs by 2^-24 of what it
    gives, some 30 lie on the way, and gradients here are below 4: 30 x 4 x 2^-24 < 1e-5."""
    torch.manual_seed(0)
    given = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6)
    found = []
    ours = partial(attend, scores=Arithmetic(), values=Arithmetic())
    for form in (F.scaled_dot_product_attention, ours):
        q, k, v = (x.clone().requires_grad_() for x in given)
        y = form(q, k, v, enable_gqa=True, **how)
        found.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v))])
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() < 1e-5


@pytest.mark.parametrize("overflow", [math.inf, -math.inf, math.nan])
def test_the_causal_softmax_equals_a_boolean_mask_bit_for_bit(overflow):
    torch.manual_seed(0)
    q, k = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    q[0, 1], k[0, :2] = (overflow, 1.0)
    mask, found = torch.ones(6, 6, dtype=torch.bool).tril(), []
    for how in ({"mask": None, "is_causal": True}, {"mask": mask}):
        given = [x.clone().requires_grad_() for x in (q, k)]
        weights = probabilities(*given, scale=0.3, scores=Arithmetic(), **how)
        found.append([weights, *torch.autograd.grad(weights.square().sum(), given)])
    assert found[0][0][0, 1].isnan().all() == (overflow != -math.inf)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_every_operand_of_both_products_is_rounded():
    formats = dict(zip(ALL, ("e4m3", "e3m2", "e5m2"), strict=True))
    both = Arithmetic({(role, p): Nearest(custom_fp.parse(f)) for role, f in formats.items()
                       for p in ("forward", "input_gradient", "weight_gradient")})  # fmt: skip
    x, w, e = (lambda t, f=f: custom_fp.quantize(t, f) for f in formats.values())
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    y = attend(q, k, v, is_causal=True, scores=both, values=both)
    dy = torch.randn_like(y)
    dq, dk, dv = torch.autograd.grad(y, (q, k, v), dy)
    with torch.no_grad():
        scale, hidden = 1 / math.sqrt(8), torch.ones(5, 5, dtype=torch.bool).triu(1)
        scores = (x(q) @ w(k).mT * scale).masked_fill(hidden, -math.inf)
        p = scores.softmax(-1)
        assert torch.equal(y, x(p) @ w(v))
        assert torch.equal(dv, (e(dy).mT @ x(p)).mT)
        ds = torch.ops.aten._softmax_backward_data(e(dy) @ w(v).mT, p, -1, torch.float32)
        ds = ds.masked_fill(hidden, 0.0) * scale
        assert torch.equal(dq, e(ds) @ w(k)) and torch.equal(dk, e(ds).mT @ x(q))
    summed = Arithmetic(accumulators=dict.fromkeys(("forward", "input_gradient", "weight_gradient"), "e5m10"))
    scores = custom_fp.matmul(q, k.mT, accumulator="e5m10") * scale
    expected = custom_fp.matmul(scores.softmax(-1), v, accumulator="e5m10")
    assert torch.equal(attend(q, k, v, scores=summed, values=summed), expected)


def test_calls_of_the_attention_function_are_rounded_copied_compiled_and_batched():
    net, plain = Net(), Net()
    placement = placed(net, {"modules": SDPA, "role": ALL, "format": "e4m3"})
    kinds = {type(block).__name__ for block in net.blocks}
    y = net(INDEX)
    placement.check_called()
    assert kinds == {"Block"} and isinstance(net.blocks[0], Block) and not torch.equal(y, plain(INDEX))
    assert torch.equal(pickle.loads(pickle.dumps(net))(INDEX), plain(INDEX))
    for other in (copy.deepcopy(net), torch.compile(net, fullgraph=True, backend="eager")):
        assert torch.equal(other(INDEX), y)
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(weights, index):
        return torch.func.functional_call(net, weights, (index[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, INDEX)
    for i, index in enumerate(INDEX):
        for name, g in torch.func.grad(loss)(weights, index).items():
            torch.testing.assert_close(each[name][i], g, rtol=1e-4, atol=1e-6)


def test_only_patterns_that_name_attention_select_it():
    net, plain = Net(), Net()
    placed(net, {"modules": "blocks.1.scores", "role": "weight", "format": "e3m0"})
    x = plain.symbols(INDEX)
    assert torch.equal(net.blocks[0](x), plain.blocks[0](x))
    assert not torch.equal(net.blocks[1](x), plain.blocks[1](x))
    net = Net()
    placed(net, {"modules": "*", "role": "weight", "format": "e3m0"})
    assert type(net.symbols) is nn.Embedding and type(net.blocks[0]) is Block


def test_rules_of_attention_without_effect_are_refused():
    rule = {"modules": SDPA, "role": "weight", "format": "e4m3"}
    with pytest.raises(ValueError, match=rf"rules\[0\]: '{SDPA}' matches no layer"):
        placed(nn.Sequential(nn.Linear(2, 2)), rule)
    placed(nn.Sequential(nn.Linear(2, 2)), rule | {"optional": True})

    class Other(nn.Module):
        def forward(self, x):
            return x

    other = placed(Other(), rule)
    with pytest.raises(ValueError, match=r"rules\[0\]: none of the modules selected by this rule calls"):
        other.check_called()


SETTINGS = [{"bias": False}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 6, "vdim": 4}]


@pytest.mark.parametrize("how", [*SETTINGS, {"batch_first": True}])
def test_multihead_attention_without_rounding_equals_torchs(how):
    torch.manual_seed(1)
    layer = nn.MultiheadAttention(8, 2, **how)
    ours = QuantMultiheadAttention.from_module(layer, Arithmetic())
    q, k = torch.randn(5, 3, 8), torch.randn(7, 3, how.get("kdim", 8))
    v = torch.randn(7, 3, 4) if "vdim" in how else k
    alone = [x[:, 0] for x in (q, k, v)]
    given = [x.transpose(0, 1) for x in (q, k, v)] if "batch_first" in how else [q, k, v]
    padding, mask = torch.rand(3, 7) > 0.7, torch.rand(5, 7) > 0.8
    padding[:, 0] = mask[:, 0] = False
    masks = [{}, {"need_weights": False}, {"key_padding_mask": padding}, {"attn_mask": torch.randn(6, 5, 7)}]
    masks.append({"attn_mask": mask, "key_padding_mask": padding, "average_attn_weights": False})
    for of in masks:
        for one, other in zip(layer(*given, **of), ours(*given, **of), strict=True):
            assert (one is other is None) or (one - other).abs().max() < 2e-6
    of = {"attn_mask": mask, "key_padding_mask": padding[0]}
    for one, other in zip(layer(*alone, **of), ours(*alone, **of), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-6)


def test_every_product_of_an_encoder_is_rounded():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1)
    x = torch.randn(3, 4, 8)
    rules = [{"modules": [SDPA, "MultiheadAttention", "Linear"], "role": ALL, "format": "e3m2"}]
    placed(encoder, *rules)
    y = encoder(x)
    with torch.no_grad():
        assert torch.equal(encoder.eval()(x), y)
    q = lambda t: custom_fp.quantize(t, "e3m2")  # noqa: E731
    it = encoder.layers[0]
    of = it.self_attn
    heads = (q(x) @ q(of.in_proj_weight).t() + of.in_proj_bias).view(3, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
    p = (q(heads[0]) @ q(heads[1]).mT * 0.5).softmax(-1)
    mixed = (q(p) @ q(heads[2])).transpose(1, 2).flatten(2)
    after = it.norm1(x + q(mixed) @ q(of.out_proj.weight).t() + of.out_proj.bias)
    hidden = (q(after) @ q(it.linear1.weight).t() + it.linear1.bias).relu()
    expected = it.norm2(after + q(hidden) @ q(it.linear2.weight).t() + it.linear2.bias)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)


def test_rows_and_gradients_of_an_embedding_are_rounded():
    torch.manual_seed(0)
    table = nn.Embedding(5, 8)
    weight = table.weight.detach().clone()
    model = nn.Sequential(table)
    placed(
        model,
        {"modules": "Embedding", "role": "weight", "format": "mxfp4"},
        {"modules": "0", "role": "output_gradient", "format": "e4m3"},
    )
    y = model(INDEX)
    assert torch.equal(y, custom_fp.quantize(weight[INDEX], "mxfp4", axis=-1))
    error = torch.randn_like(y)
    y.backward(error)
    expected = torch.zeros(5, 8).index_add_(
        0, INDEX.flatten(), custom_fp.quantize(error, "e4m3").flatten(0, 1)
    )
    torch.testing.assert_close(model[0].weight.grad, expected, rtol=0, atol=1e-6)
    with pytest.raises(
        ValueError, match="hadamard=16 transforms weight of forward but not the other operand"
    ):
        placed(
            nn.Sequential(nn.Embedding(5, 16)),
            {"modules": "0", "role": "weight", "format": "mxfp4", "hadamard": 16},
        )
