"""Test how output heads, routers and output projections of attention are found, and how recipes treat them."""

import custom_fp
import pytest
import torch
from custom_fp.recipe.model_parts import ATTENTION_OUTPUT, OUTPUT_HEAD, ROUTER, parts_of
from torch import nn
from torch.nn import functional as F


def module(**children):
    found = nn.Module()
    for name, child in children.items():
        found.add_module(name, child)
    return found


def linear(width=32, out=32):
    return nn.Linear(width, out)


class Experts(nn.Module):
    """A mixture of four experts. All of them compute every row, and the router weights their outputs."""

    def __init__(self):
        super().__init__()
        self.gate = linear(out=4)
        self.experts = nn.ModuleList(linear() for _ in range(4))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return sum(w * expert(x) for w, expert in zip(weights.split(1, -1), self.experts, strict=True))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lm_head = linear(out=11)  # the head is found although it is not registered last
        self.q_proj, self.v_proj, self.o_proj = linear(), linear(), linear()
        self.moe = Experts()

    def forward(self, x):
        x = x + self.o_proj(F.scaled_dot_product_attention(*(self.q_proj(x),) * 2, self.v_proj(x)))
        return self.lm_head(x + self.moe(x))


def names_of(model):
    found = parts_of(model)
    return {name: found[layer] for name, layer in model.named_modules() if layer in found}


BLOCKS = nn.ModuleList([module(norm=nn.LayerNorm(32), fc=linear(), gate=linear(), output=linear())])
BERT_ATTENTION = module(
    self=module(query=linear(), key=linear(), value=linear()), output=module(dense=linear())
)
HEAD, NO_PART = OUTPUT_HEAD, {}
MODELS = {
    "the only layer of a model is no head": (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), NO_PART),
    "the last layer of a Sequential": (nn.Sequential(linear(), nn.ReLU(), linear()), {"2": HEAD}),
    "a last child of any name": (module(first=linear(), second=linear()), {"second": HEAD}),
    "the last layer of a classifier": (
        module(features=nn.Sequential(nn.Conv2d(3, 4, 3)), classifier=nn.Sequential(linear(), linear())),
        {"classifier.1": HEAD},
    ),
    "two heads": (
        module(blocks=BLOCKS, aux_classifier=linear(), classifier=linear()),
        {"aux_classifier": HEAD, "classifier": HEAD},
    ),
    "a model without a head": (module(symbols=nn.Embedding(5, 4), blocks=BLOCKS), NO_PART),
    "the head of BERT": (
        module(
            cls=module(predictions=module(transform=linear(), decoder=linear())),
            pooler=module(dense=linear()),
        ),
        {"cls.predictions.decoder": HEAD},
    ),
    "a wrapped model": (module(module=module(blocks=BLOCKS, head=linear())), {"module.head": HEAD}),
    "a router within a router": (
        module(
            blocks=nn.ModuleList([module(router=module(gate=linear()), experts=nn.ModuleList([linear()]))])
        ),
        {"blocks.0.router.gate": ROUTER},
    ),
    "a router that is no layer": (
        module(blocks=nn.ModuleList([module(gate=nn.Identity(), experts=nn.Identity())])),
        {"blocks.0.gate": ROUTER},
    ),
    "a fused projection": (
        module(blocks=nn.ModuleList([module(qkv=linear(), project=linear(), mlp=nn.Sequential(linear()))])),
        {"blocks.0.project": ATTENTION_OUTPUT},
    ),
    "attention of BERT": (
        module(layer=nn.ModuleList([module(attention=BERT_ATTENTION, output=module(dense=linear()))])),
        {"layer.0.attention.output.dense": ATTENTION_OUTPUT},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_found(name):
    model, expected = MODELS[name]
    assert names_of(model) == expected


def test_recipes_keep_heads_and_routers_in_bf16():
    assert names_of(Decoder()) == {"lm_head": HEAD, "o_proj": ATTENTION_OUTPUT, "moe.gate": ROUTER}
    for recipe in ("mxfp8", "nvfp4", "fp8_block128", "ufp4"):
        rounded = custom_fp.apply_recipe(
            Decoder(), recipe, **{"bf16_layers": 0} if recipe == "nvfp4" else {}
        ).rounded
        in_bf16 = {
            name for name, text in rounded.items() if text.startswith("input=bf16, weight=bf16, output_gr")
        }
        assert in_bf16 - {"scores", "values"} == {"lm_head", "moe.gate"}
    stored = custom_fp.apply_recipe(Decoder(), "fp8_block128").rounded
    assert [name for name, text in stored.items() if "cached in e5m6" in text] == ["o_proj"]
    assert "cached in fp8_b128_e8m0_rceil" in stored["q_proj"]


def test_the_parts_of_a_mixture_of_experts_have_formats_of_their_own():
    model = Decoder()
    applied = custom_fp.apply_recipe(
        model, "moe_parts", router="e5m2", experts="e4m3", attention="e3m4", rest="e2m5"
    )
    model(torch.randn(5, 32))
    applied.check_called()
    formats = {name: text.split(",")[0] for name, text in applied.rounded.items()}
    experts = {f"moe.experts.{i}": "input=e4m3" for i in range(4)}
    rest = dict.fromkeys(("lm_head", "q_proj", "v_proj", "o_proj"), "input=e2m5")
    attention = dict.fromkeys(("scores", "values"), "input=e3m4")
    assert formats == {"moe.gate": "input=e5m2", **experts, **rest, **attention}


def test_null_removes_the_rule_of_the_head():
    given, removed = (
        custom_fp.apply_recipe(Decoder(), "mxfp8", head=head).rounded for head in ("bf16", None)
    )
    assert given["lm_head"].startswith("input=bf16") and removed["lm_head"] == removed["q_proj"]
    as_float32 = custom_fp.apply_recipe(Decoder(), "mxfp8", head="fp32").rounded["lm_head"]
    assert as_float32 == "result of forward=bf16, result of input_gradient=bf16"


def test_an_output_head_computes_the_same_bits_as_under_autocast():
    model, x = Decoder(), torch.randn(5, 32)
    custom_fp.apply_recipe(model, "mxfp8")
    head, plain = model.lm_head, linear(out=11)
    plain.load_state_dict(head.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(x), plain(x).float())


def test_a_pattern_for_a_part_that_the_model_lacks_is_an_error():
    with pytest.raises(ValueError, match=r"rules\[0\]: 'router' matches no layer"):
        custom_fp.apply_recipe(
            module(a=linear(), b=linear()), [{"modules": "router", "role": "input", "format": "e5m2"}]
        )


class CallingRouter(nn.Module):
    """A router that calls F.linear instead of being a Linear layer, as in transformers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 32))

    def forward(self, x):
        return F.linear(x, self.weight)


def test_a_pattern_selects_the_calls_of_routers():
    model, x = Decoder(), torch.randn(5, 32)
    model.moe.gate = CallingRouter()
    rules = [{"modules": "router.linear()", "role": ["input", "weight"], "format": "e8m1"}]
    applied = custom_fp.apply_recipe(model, rules)
    coarse = (custom_fp.quantize(t, "e8m1") for t in (x, model.moe.gate.weight.detach()))
    model(x)
    assert list(applied.rounded) == ["moe.gate.linear()"]
    assert torch.equal(model.moe.gate(x), F.linear(*coarse))
