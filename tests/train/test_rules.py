"""Precision rules: short forms are rules, the first that matches wins, and a rule that never applies is an error."""

import copy
import re

import custom_fp
import pytest
import torch
from test_precision import FP32
from torch import nn

from cpdrun.config.identity import identity_hash
from cpdrun.sweep import plan
from cpdrun.train.precision.run_formats import Formats

ALL = {"modules": "*", "format": "e4m3"}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def after_a_step(precision, step=0):
    """Return all weights and statistics after one step of SGD."""
    model = precision.prepare(net())
    precision.at(step)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    model(x).square().sum().backward()
    precision.step(torch.optim.SGD(model.parameters(), lr=0.1), list(model.parameters()))
    return list(model.state_dict().values())


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


SHORT_FORMS = {
    "weights": "parameter",
    "activations": "activation",
    "errors": "error",
    "accumulator": "accumulator",
}


@pytest.mark.parametrize(("key", "role"), SHORT_FORMS.items())
def test_a_short_form_is_a_rule_for_all_modules(key, role):
    short = after_a_step(Formats(**FP32 | {key: "e4m3"}))
    assert equal(short, after_a_step(Formats(**FP32, rules=[ALL | {"role": role}])))
    assert not equal(short, after_a_step(Formats(**FP32)))


def test_the_first_rule_that_matches_wins():
    rules = [{"modules": ["3", "BatchNorm*"], "role": "parameter", "format": "fp32"}]
    precision = Formats(**FP32 | {"weights": "e4m3"}, rules=rules)
    model, plain = precision.prepare(net()), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rounded = [not torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True)]
    assert rounded == [True, True, False, False, False, False]
    numels = [p.numel() for p in model.parameters()]
    kept = sum(n * (1 if few else 4) for n, few in zip(numels, rounded, strict=True)) + 4 * 16
    assert precision.memory(optimizer, list(model.parameters()))["model_bytes"] == kept


def test_a_rule_with_steps_changes_no_other_step():
    rules = [ALL | {"role": role, "steps": [2, 4]} for role in ("weight", "activation", "error")]
    plain = after_a_step(Formats(**FP32))
    always = [{k: v for k, v in rule.items() if k != "steps"} for rule in rules]
    in_force = after_a_step(Formats(**FP32, rules=always))
    for step, expected in ((0, plain), (1, plain), (2, in_force), (3, in_force), (4, plain)):
        assert equal(after_a_step(Formats(**FP32, rules=rules), step), expected), step
    assert not equal(plain, in_force)


def test_a_rule_for_one_product_of_one_layer():
    rule = {"modules": "3", "role": "output_gradient", "product": "weight_gradient", "format": "e3m0"}
    model, plain = Formats(**FP32, rules=[rule]).prepare(net()), net()
    x = torch.randn(16, 8)
    for m in (model, plain):
        m(x).square().sum().backward()
    error = (2 * plain(x)).detach()
    read = plain[:3](x).detach()
    expected = custom_fp.quantize(error, "e3m0").t() @ read
    torch.testing.assert_close(model[3].weight.grad, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model[0].weight.grad, plain[0].weight.grad)
    assert type(model[0]) is nn.Linear


def test_rounded_errors_allow_layers_that_change_their_input_in_place():
    """The input was once a view, which autograd does not allow to change."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    Formats(**FP32 | {"errors": "e5m2"}).prepare(model)(torch.randn(2, 4)).sum().backward()


def test_all_outputs_of_layers_that_return_tuples_are_rounded():
    lstm = nn.LSTM(4, 3)
    Formats(**FP32 | {"activations": "e3m2"}).prepare(lstm)
    y, (h, c) = lstm(torch.randn(2, 1, 4))
    assert all(torch.equal(custom_fp.quantize(x, "e3m2"), x) for x in (y, h, c))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("e4m3", "precision.rules[0]=e4m3: must be a mapping"),
        (ALL | {"rol": "weight"}, "precision.rules[0]: unknown key 'rol' (did you mean 'role'?)"),
        (ALL, "precision.rules[0]: role is missing"),
        (ALL | {"role": "weights"}, "precision.rules[0].role=weights: choose one of input, weight,"),
        (
            ALL | {"role": "weight", "product": "weight_gradient"},
            "precision.rules[0].product=weight_gradient: allowed for role weight: forward, input_gradient",
        ),
        (ALL | {"role": "error", "product": "forward"}, "allowed for role error: none, so remove product"),
        (ALL | {"role": "weight", "steps": [5, 5]}, "precision.rules[0].steps=[5, 5]: must be [first, end]"),
        (
            ALL | {"role": "parameter", "steps": [0, 5]},
            "precision.rules[0].steps: the format of stored weights cannot change",
        ),
        (ALL | {"role": "weight", "format": "e9m9"}, "precision.rules[0].format=e9m9: "),
        (
            ALL | {"role": "accumulator", "format": "mxfp4"},
            "precision.rules[0].format=mxfp4: a format with scales",
        ),
        (ALL | {"role": "weight", "kahan": True}, "precision.rules[0]: kahan requires the role accumulator"),
        (ALL | {"role": "weight", "aps": True, "format": "mxfp4"}, "has its own scales; use aps=false"),
        (ALL | {"role": "weight", "aps": 1}, "precision.rules[0].aps=1: must be true or false"),
        (ALL | {"role": "weight", "modules": []}, "precision.rules[0].modules=[]: must be a pattern"),
        (
            ALL | {"role": "weight", "modules": "head"},
            "precision.rules[0]: 'head' matches no layer (role weight requires",
        ),
        (
            ALL | {"role": "weight", "modules": "ReLU"},
            "Conv3d, or layers that the pattern names: BatchNorm1d); the first suitable layers are 0, 3, 1",
        ),
        (ALL | {"role": "weight", "steps": [7, 9], "format": "fp32"}, None),
    ],
)
def test_a_rule_that_cannot_be_applied_is_named(rule, message):
    if message is None:
        Formats(**FP32, rules=[rule]).prepare(net())
        return
    with pytest.raises(ValueError, match=re.escape(message)):
        Formats(**FP32, rules=[rule]).prepare(net())


def test_a_rule_after_others_that_match_everything_is_an_error():
    rules = [ALL | {"role": "weight"}, {"modules": "3", "role": "weight", "format": "e5m2"}]
    with pytest.raises(
        ValueError, match=r"precision\.rules\[1\] would never apply: earlier rules match everything"
    ):
        Formats(**FP32, rules=rules).prepare(net())


def test_the_key_rules_changes_no_name_if_empty():
    (run,) = plan(["exp=digits_bits", "format=e4m3", "aps=false", "seed=0"]).runs
    older = copy.deepcopy(run.config)
    del older["precision"]["rules"]
    assert identity_hash(older) == identity_hash(run.config)
    ruled = copy.deepcopy(run.config)
    ruled["precision"]["rules"] = [ALL | {"role": "weight"}]
    assert identity_hash(ruled) != identity_hash(run.config)


def test_a_rule_whose_steps_come_after_the_last_is_an_error():
    """A rule is also an error if earlier rules match everything in all steps of the run."""
    late = {"modules": "0", "role": "weight", "format": "e5m2", "steps": [10, None]}
    for rules, i, why in (
        ([late], 0, "the run has 10 steps"),
        (
            [ALL | {"role": "weight", "steps": [0, 10]}, {**late, "steps": None}],
            1,
            "earlier rules match everything",
        ),
    ):
        precision = Formats(**FP32, rules=rules)
        precision.steps = 11
        precision.prepare(net())
        precision = Formats(**FP32, rules=rules)
        precision.steps = 10
        with pytest.raises(ValueError, match=rf"precision\.rules\[{i}\] would never apply: {why}"):
            precision.prepare(net())


def test_a_rule_for_frozen_weights_only_is_an_error():
    model = net()
    model[0].requires_grad_(False)
    rule = {"modules": "0", "role": "parameter", "format": "e4m3"}
    with pytest.raises(ValueError, match="'0' matches no layer; the first suitable layers are 1, 3"):
        Formats(**FP32, rules=[rule]).prepare(model)


def test_kahan_applies_to_the_products_of_its_rule_only():
    sums = {"modules": "Linear", "role": "accumulator", "format": "e4m3"}
    kahan_forward = [{**sums, "product": "forward", "kahan": True}, sums]

    def products(rules):
        model = Formats(**FP32, rules=rules).prepare(nn.Linear(64, 2, bias=False))
        model.weight.data = torch.linspace(-1, 1, 128).view(2, 64)
        y = model(torch.linspace(0, 1, 40 * 64).view(40, 64))
        (dw,) = torch.autograd.grad(y.sum(), [model.weight])
        return y.detach(), dw, str(model)

    y, dw, shown = products(kahan_forward)
    y_plain, dw_plain, _ = products([sums])
    y_kahan, dw_kahan, _ = products([{**sums, "kahan": True}])
    assert torch.equal(y, y_kahan) and not torch.equal(y, y_plain)
    assert torch.equal(dw, dw_plain) and not torch.equal(dw, dw_kahan)
    assert "kahan of forward=True" in shown
