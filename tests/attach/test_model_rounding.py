"""A run's precision rules in a script's models: a built-in run's products, in layers that stay the same objects."""

import re
from collections.abc import Callable

import custom_fp
import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
from intercepted_script import batch, config
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import cpdrun
from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.errors import UserError
from cpdrun.train.instantiate import part

RULES = (
    "precision.rules=[{modules: Linear, role: weight, format: e4m3}, {modules: Linear, role: input, format: e4m3},"
    " {modules: Linear, role: output_gradient, format: e5m2, aps: true},"
    " {modules: 'body.*', role: accumulator, format: e5m10, product: forward}]",
)

WEIGHTS = "precision.rules=[{modules: '*', role: weight, format: e4m3}]"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 4, 3)
        self.body = nn.Sequential(nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 10)
        self.also_head = [self.head]

    def forward(self, x: Tensor) -> Tensor:
        return self.also_head[0](self.body(self.conv(x).relu().flatten(1)))


def gradients(
    model: nn.Module, around: Callable[[nn.Module], nn.Module] = lambda model: model
) -> list[Tensor]:
    x, y = batch(0, 0)
    model.zero_grad()
    F.cross_entropy(around(model)(x), y).backward()
    return [p.grad.clone() for p in model.parameters()]


def built_in(*typed: str) -> list[Tensor]:
    """Those of a model that the built-in run has prepared."""
    net = Net()
    net.also_head = []
    prepared = part("precision", config(*typed)["precision"]).prepare(net)
    prepared.also_head = [prepared.head]
    return gradients(prepared)


def test_products_equal_those_of_a_built_in_run(intercept) -> None:
    interceptor = intercept(*RULES)
    net = Net()
    head = net.head
    optimizer = SGD(net.parameters(), lr=0.1)
    assert net.head is head is net.also_head[0] and isinstance(head, custom_fp.QuantLinear)
    expected = built_in(*RULES)
    assert all(map(same_bits, gradients(net), expected))
    assert not all(map(same_bits, gradients(Net()), expected))
    optimizer.step()
    interceptor.check()
    facts = interceptor.facts()["products"]
    assert set(facts["rounded"]) == {"body.0", "body.2", "head"} and facts["in_fp32"] == {"conv": "Conv2d"}
    assert "accumulator of forward=fp16" in facts["rounded"]["body.0"]


def test_a_model_can_be_added_explicitly(intercept) -> None:
    interceptor = intercept(*RULES)
    net = Net()
    interceptor.add(net)
    assert isinstance(net.head, custom_fp.QuantLinear)
    SGD(net.parameters(), lr=0.1)
    assert all(map(same_bits, gradients(net), built_in(*RULES)))
    with pytest.raises(UserError, match="must be models and optimizers, not int"):
        interceptor.add(3)


def test_a_model_that_is_one_layer_stays_the_same_object(intercept) -> None:
    intercept(WEIGHTS)
    net = nn.Linear(8, 4)
    SGD(net.parameters(), lr=0.1)
    assert isinstance(net, custom_fp.QuantLinear)
    x = torch.randn(3, 8)
    assert same_bits(net(x).detach(), F.linear(x, custom_fp.quantize(net.weight.detach(), "e4m3")) + net.bias)


def test_rules_apply_in_their_steps(intercept) -> None:
    rule = {"modules": "head", "role": "weight", "format": "e3m0", "steps": [1, 2]}
    for own in (False, True):  # of the run, or by a recipe of the script's
        interceptor = intercept(*([] if own else [f"precision.rules={[rule]}"]))
        net = Net()
        if own:
            interceptor.apply_recipe(net, [rule])
        optimizer = SGD(net.parameters(), lr=0.0)
        fp32 = gradients(Net())
        same = []
        for _ in range(3):
            same.append(all(map(same_bits, gradients(net), fp32)))
            optimizer.step()
        assert same == [True, False, True] and interceptor.state_dict() == {"steps": 3, "sums": {}}


def test_rules_apply_to_a_compiled_model(intercept) -> None:
    intercept(*RULES)
    net = Net()
    compiled = torch.compile(net, backend="eager")
    SGD(compiled.parameters(), lr=0.1)
    found = gradients(net, lambda _: compiled)
    assert all(map(same_bits, found, built_in(*RULES)))


def test_autocast_does_not_change_products_of_rules(intercept) -> None:
    intercept(WEIGHTS)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    SGD(net.parameters(), lr=0.1)
    x, y = batch(0, 0)
    found = []
    for enabled in (False, True):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            F.cross_entropy(net(x), y).backward()
        found.append([p.grad.clone() for p in net.parameters()])
    assert all(map(same_bits, *found))


def test_a_rule_that_matches_no_layer_is_an_error(intercept) -> None:
    interceptor = intercept("precision.rules=[{modules: 'tail.*', role: weight, format: e4m3}]")
    net = Net()
    with pytest.raises(UserError, match=r"precision.rules\[0\]: 'tail\.\*' matches no layer"):
        SGD(net.parameters(), lr=0.1)
    with pytest.raises(UserError, match="precision rules had no effect on any layer"):
        interceptor.check()


def test_attention_of_a_script_is_rounded_and_listed(intercept) -> None:
    """A rule of attention that no call of it met is an error, once the script has ended."""
    rule = "precision.rules=[{modules: scaled_dot_product_attention, role: input, format: e3m2}]"
    interceptor = intercept(rule)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 3, 8)
    plain = layer(x).detach()
    SGD(layer.parameters(), lr=0.1)
    assert not same_bits(layer(x).detach(), plain)
    interceptor.check()
    facts = interceptor.facts()["products"]
    assert list(facts["rounded"]) == ["self_attn.scores", "self_attn.values"]
    assert facts["in_fp32"].keys() >= {"linear1", "linear2"}
    interceptor = intercept(rule)
    net = Net()
    SGD(net.parameters(), lr=0.1)
    net(batch(0, 0)[0])
    with pytest.raises(UserError, match="selected by this rule calls scaled_dot_product_attention"):
        interceptor.check()


def test_the_recipe_of_the_run_replaces_that_of_the_script(intercept, capsys, monkeypatch) -> None:
    def of(recipe: str) -> list[Tensor]:
        net = Net()
        custom_fp.apply_recipe(net, recipe)
        return gradients(net)

    interceptor = intercept("recipe=bf16")
    net = Net()
    SGD(net.parameters(), lr=0.1)
    interceptor.check()
    assert set(interceptor.facts()["products"]["rounded"]) == {"conv", "body.0", "body.2", "head"}
    assert all(map(same_bits, gradients(net), of("bf16")))
    interceptor, net = intercept("recipe=bf16"), Net()
    interceptor.apply_recipe(net, "mxfp8")
    assert all(map(same_bits, gradients(net), of("bf16")))
    assert "the run's recipe=bf16 replaces the script's recipe=mxfp8" in interceptor.facts()["notes"][0]
    interceptor, net = intercept("recipe=fp8_delayed"), Net()
    optimizer = SGD(net.parameters(), lr=0.1)
    first = gradients(net)
    for p, g in zip(net.parameters(), first, strict=True):
        p.grad = g
    optimizer.step()
    histories = interceptor.state_dict()["sums"]["histories of model 0"]
    assert (
        all(values[0] > 0 and not values[1:].any() for values in histories.values()) and len(histories) == 12
    )
    interceptor, net = intercept(), Net()
    interceptor.apply_recipe(net, "mxfp8")
    assert all(map(same_bits, gradients(net), of("mxfp8"))) and interceptor.facts()["products"]["rounded"]
    monkeypatch.delenv("CPDRUN_RUN_DIR", raising=False)
    net = Net()
    cpdrun.attach(net, SGD(net.parameters(), lr=0.1), recipe="mxfp8")
    assert all(map(same_bits, gradients(net), of("mxfp8")))
    assert "left in float32 (0)" in capsys.readouterr().err
    for given, why in (
        ((Net(),), "cpdrun.attach: unknown recipe 'mxpf8' (did you mean 'mxfp8'?)"),
        ((), "needs a model"),
    ):
        with pytest.raises(UserError, match=re.escape(why)):
            cpdrun.attach(*given, recipe="mxpf8")


def test_a_second_model_that_no_rule_matches_stays_in_float32(intercept) -> None:
    interceptor = intercept(
        "precision.rules=[{modules: Linear, role: input, format: e4m3},"
        " {modules: 'body.*', role: weight, format: e4m3}]"
    )
    net, other = Net(), nn.Linear(4, 4)
    SGD(net.parameters(), lr=0.1)
    SGD(other.parameters(), lr=0.1)
    assert type(other) is nn.Linear and "Linear stays in float32, because" in interceptor.facts()["notes"][0]


def wrapped(how: str, *typed: str) -> list[Tensor]:
    interceptor = Interceptor(config(*typed, "world_size=2"))
    interceptor.install()
    net = model = Net()
    if how == "ddp":
        model = DistributedDataParallel(net)
    else:
        for part_of_it in (net.body[0], net.body, net):
            torch.distributed.fsdp.fully_shard(part_of_it)
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch(0, 0)
    F.cross_entropy(model(x), y).backward()
    found = [p.grad.full_tensor() if how == "fsdp" else p.grad for p in model.parameters()]
    optimizer.step()
    interceptor.check()
    return [g.detach().clone() for g in found]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_rules_apply_under_ddp_and_fsdp(how: str) -> None:
    """The same samples on both ranks: the mean is each one's."""
    expected = built_in(*RULES)
    for found in run_ranks(2, wrapped, how, *RULES):
        assert all(map(same_bits, found, expected))
