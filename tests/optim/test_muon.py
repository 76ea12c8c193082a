"""Muon with AdamW: which parameters each of them updates, and the same updates as torch's own, bit for bit."""

import pytest
import torch
from torch import nn

from cpdrun.config.errors import ConfigError
from cpdrun.optim.muon import MuonAndAdamW
from cpdrun.sweep import plan
from cpdrun.train.build import BuildError, build

CPU = torch.device("cpu")
TEXT = ("exp=transformer_bits_small", "format=fp32", "seed=0", "optim=muon")
MUON = {
    "lr": 0.02, "momentum": 0.95, "nesterov": True, "weight_decay": 0.1, "ns_steps": 5, "adjust_lr_fn": "original"
}  # fmt: skip
ADAMW = {"lr": 0.003, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}


def parts_of(*typed):
    (run,) = plan([*TEXT, *typed]).runs
    return build(run.config, CPU)


def names_by_update(parts):
    name_of = {id(p): name for name, p in parts.model.named_parameters()}
    found = {}
    for group in parts.optimizer.param_groups:
        found.setdefault(group["update"], set()).update(name_of[id(p)] for p in group["params"])
    return found


@pytest.mark.parametrize(("model", "tied"), [("gpt", ()), ("llama", ("model.tied=false",))])
def test_muon_updates_matrices_of_hidden_layers_and_adamw_the_rest(model, tied):
    parts = parts_of(f"model={model}", *tied)
    found = names_by_update(parts)
    matrices = {n for n, p in parts.model.named_parameters() if p.dim() == 2 and n.startswith("blocks.")}
    assert found["muon"] == matrices and len(matrices) == 2 * (4 if model == "gpt" else 7)
    assert found["adamw"] == {n for n, _ in parts.model.named_parameters()} - matrices
    assert ("head.weight" in found["adamw"]) == bool(tied)


def test_each_part_is_updated_as_by_torchs_optimizer_and_resumes():
    ends = []
    for stops in (False, True):
        parts = parts_of("model=llama")
        model, optimizer = parts.model, parts.optimizer
        by_name = dict(model.named_parameters())
        start = {name: nn.Parameter(p.detach().clone()) for name, p in by_name.items()}
        found = names_by_update(parts)
        theirs = [
            torch.optim.Muon([start[n] for n in by_name if n in found["muon"]], **MUON),
            torch.optim.AdamW([start[n] for n in by_name if n in found["adamw"]], **ADAMW),
        ]
        torch.manual_seed(1)
        for step in range(4):
            for name, p in by_name.items():
                p.grad = torch.randn(p.shape)
                start[name].grad = p.grad.clone()
            for group in optimizer.param_groups:  # as a schedule does
                group["lr"] = (0.02 if group["update"] == "muon" else 0.003) * (1 - step / 4)
            for other in theirs:
                other.param_groups[0]["lr"] = other.defaults["lr"] * (1 - step / 4)
                other.step()
            optimizer.step()
            if stops:
                state = optimizer.state_dict()
                optimizer = parts.make_optimizer(list(by_name.values()))
                optimizer.load_state_dict(state)
        assert all(torch.equal(p, start[name]) for name, p in by_name.items())
        ends.append(torch.cat([p.detach().flatten() for p in by_name.values()]))
    assert torch.equal(*ends)


def test_a_parameter_group_overrides_the_choice_of_the_optimizer():
    parts = parts_of(
        "model=llama",
        "parameter_groups=[{parameters:['blocks.0.*'],update:adamw},{modules:[RMSNorm],lr:0.5}]",
    )
    found = names_by_update(parts)
    assert found["muon"] and not any(name.startswith("blocks.0.") for name in found["muon"])
    assert sorted(g["lr"] for g in parts.optimizer.param_groups) == [0.003, 0.003, 0.02, 0.5]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ("exp=digits_bits", "data=digits", "model=convnet", "format=fp32"),
            r"optim: Muon updates the matrices of hidden layers.*optim=adamw",
        ),
        (("parameter_groups=[{parameters:['*'],update:adam}]",), "update=adam must be muon or adamw"),
        (("sync=gossip_dpsgd", "sync.quasi_global_momentum=0.9"), "supports one lr, but optim=muon has two"),
    ],
)
def test_runs_that_muon_does_not_support_are_refused(typed, message):
    with pytest.raises((BuildError, ConfigError), match=message):
        parts_of(*typed)


@pytest.mark.parametrize(
    ("shape", "changed", "message"),
    [
        ((4, 4, 3), {}, "only supports 2D parameters"),
        ((4, 4), {"adjust_lr_fn": "mine"}, "mine is not supported"),
        ((4, 4), {"ns_steps": 100}, r"optim\.ns_steps must lie between 0 and 99, not 100"),
    ],
)
def test_settings_that_torch_refuses_are_refused_at_the_start(shape, changed, message):
    of_adamw = {f"adamw_{key}": value for key, value in ADAMW.items()}
    groups = [{"params": [nn.Parameter(torch.zeros(shape))], "update": "muon"}]
    with pytest.raises(ValueError, match=message):
        MuonAndAdamW(groups, **MUON | changed, **of_adamw, adamw_parameters=[])
