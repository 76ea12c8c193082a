"""Parameter groups: which parameters they contain, with every optimizer, and in runs."""

import pytest
import torch
from torch import nn

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import identity_hash
from cpdrun.optim.groups import ParameterGroups
from cpdrun.record import read_json
from cpdrun.sweep import plan
from cpdrun.train.build import BuildError, build

CPU = torch.device("cpu")
NO_DECAY = "parameter_groups=[{parameters:['*.bias'],modules:['*Norm*'],weight_decay:0.0}]"


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_a_parameter_belongs_to_the_first_matching_group():
    model = net()
    groups = [
        {"parameters": ["*.bias"], "modules": ["*Norm*"], "weight_decay": 0.0},
        {"parameters": ["3.*"], "lr": 0.5},
    ]
    made = ParameterGroups(model, groups).optimizer(
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01), list(model.parameters())
    )
    names = {id(p): name for name, p in model.named_parameters()}
    found = [({names[id(p)] for p in g["params"]}, g["lr"], g["weight_decay"]) for g in made.param_groups]
    assert found == [
        ({"0.weight"}, 0.1, 0.01),
        ({"0.bias", "1.weight", "1.bias", "3.bias"}, 0.1, 0.0),
        ({"3.weight"}, 0.5, 0.01),
    ]


@pytest.mark.parametrize("optim", ["sgd", "lars", "lars_cpd", "lamb", "adamw"])
def test_groups_without_decay_apply_to_every_optimizer(optim):
    """With a gradient of zero, only decay moves a weight."""
    (run,) = plan(["exp=digits_bits", "format=fp32", "seed=0", f"optim={optim}", NO_DECAY]).runs
    parts = build(run.config, CPU)
    before = {name: p.detach().clone() for name, p in parts.model.named_parameters()}
    for p in parts.model.parameters():
        p.grad = torch.zeros_like(p)
    parts.optimizer.step()
    moved = {name for name, p in parts.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name, p in parts.model.named_parameters() if p.dim() > 1}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("[{parameters:['*.bais'],weight_decay:0}]", r"'\*\.bais' matches no parameter; the first ones are "),
        ("[{modules:['LayerNorm'],weight_decay:0}]", r"'LayerNorm' matches no module .*BatchNorm2d, Conv2d"),
        ("[{parameters:['*'],weight_decy:0}]", r"parameter_groups: SGD has no setting 'weight_decy'; it has"),
        ("[{parameters:['*'],lr:-1}]", r"parameter_groups: lr=-1 must be a number"),
    ],
)
def test_impossible_groups_are_refused(groups, message):
    (run,) = plan(["exp=digits_bits", "format=fp32", "seed=0", f"parameter_groups={groups}"]).runs
    with pytest.raises(BuildError, match=message):
        build(run.config, CPU)


@pytest.mark.parametrize(
    "groups", ["[{weight_decay:0}]", "[{parameters:'*.bias',weight_decay:0}]", "[{parameters:['*']}]", "5"]
)
def test_incomplete_groups_are_refused_before_anything_starts(groups):
    with pytest.raises(ConfigError, match="parameter_groups"):
        plan(["exp=digits_bits", "format=fp32", "seed=0", f"parameter_groups={groups}"])


def test_groups_are_part_of_the_identity_and_no_groups_keep_the_name():
    def hashed(*typed):
        (run,) = plan(["exp=digits_bits", "format=fp32", "seed=0", *typed]).runs
        without = {key: value for key, value in run.config.items() if key != "parameter_groups"}
        return identity_hash(run.config), identity_hash(without)

    plain, of_a_time_without_the_key = hashed()
    assert plain == of_a_time_without_the_key != hashed(NO_DECAY)[0]


@pytest.mark.parametrize(
    "typed", [(), ("sync=gossip_dpsgd",), ("precision.update=e5m10", "precision.optimizer_state=e5m10")]
)
def test_a_run_trains_by_its_groups(make_run, train_here, typed):
    """Shared weights, weights of each worker, and SGD in a format: weights with rate 0 do not change."""
    frozen = "parameter_groups=[{parameters:['features.0.*'],lr:0}]"
    digests = []
    for groups in (frozen, "parameter_groups=[]"):
        run = make_run("epochs=1", "format=fp32", "aps=false", groups, *typed)
        assert train_here(run) == 0
        state = torch.load(run.checkpoint, weights_only=True)
        weights = state.get("model")  # none where every worker has its own
        digests.append(read_json(run.done)["weights_sha256"])
        if weights is not None:
            (start,) = plan(["exp=digits_bits", "format=fp32", "seed=0", "model.width=4"]).runs
            first = dict(build(start.config, CPU).model.named_parameters())["features.0.0.weight"]
            assert torch.equal(weights["features.0.0.weight"], first) == (groups == frozen)
    assert digests[0] != digests[1]
