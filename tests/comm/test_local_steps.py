"""LocalSteps in a script gives the bits of the built-in loop. Checkpoints, refusals and the example."""

import inspect
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml
from bits import same_bits
from forked import run_script
from ranks import run_ranks, through_a_file
from torch import nn

from cpdrun.comm import LocalSteps
from cpdrun.comm.compressors.min_max import MinMax
from cpdrun.comm.workers import Workers
from cpdrun.sweep import plan
from cpdrun.train.build import Parts, build
from cpdrun.train.learners.separate_weights import LocalWeights

EXAMPLE = Path(__file__).parents[2] / "examples" / "local_digits.py"
STEPS, H, CPU = 7, 3, torch.device("cpu")
TYPED = [
    "exp=digits_bits",
    "model.width=4",
    "seed=3",
    "world_size=2",
    "batch_size=6",
    "optim=adamw",
    "sync=local",
]
# how pseudo-gradients are sent: the settings of a run, and the arguments that a script passes
WAYS = {
    "e3m0 with APS": (["format=e3m0", "aps=true", "sync.order=rank"], "e3m0", {"aps": True}),
    "stochastic": (["format=e5m2", "sync.rounding=stochastic", "sync.order=rank"], "e5m2", {"rounding": "stochastic"}),
    "top_k": (["format=fp32", "compressor=top_k", "compressor.keep=0.1"], "fp32", {"compressor": "top_k", "keep": 0.1}),
    "2 bits": (
        ["format=fp32", "compressor=min_max", "compressor.bits=2", "sync.outer_lr=1", "sync.outer_momentum=0"],
        MinMax(2, "nearest_even"),
        {"outer_lr": 1.0, "outer_momentum": 0.0},
    ),
}  # fmt: skip


def config_of(typed: list[str]) -> dict:
    words = ["aps=false"] if not any(word.startswith("aps") for word in typed) else []
    (planned,) = plan([*TYPED, f"sync.inner_steps={H}", *words, *typed]).runs
    return planned.config


def samples(step: int) -> torch.Tensor:
    return torch.arange(12).view(2, 6) + 12 * step


def emulated(config: dict) -> list[torch.Tensor]:
    """Return the weights on which two workers of the built-in loop agree. One process emulates both workers."""
    parts = build(config, CPU)
    learner = LocalWeights(config, parts, Workers(2), CPU)
    learner.last_step = STEPS - 1
    for step in range(STEPS):
        learner.step(samples(step), step=step, epoch=0, lr_factor=1.0, look=False)
    return [x.detach() for x in learner.outer.agreed]


def script(config: dict, way: str) -> tuple[list[torch.Tensor], list[int]]:
    """Run an ordinary loop, stop it within a phase, and continue with another model and optimizer."""
    _, how, knobs = WAYS[way]
    parts, steps, optimizer = begun(config, how, knobs)
    sent = []
    for step in range(STEPS):
        if step == 4:
            inner, buffers = optimizer.state_dict(), list(parts.model.buffers())
            state = through_a_file(steps.state_dict())
            parts, steps, optimizer = begun(config | {"seed": 9}, how, knobs, seed=config["seed"])
            steps.load_state_dict(state)
            optimizer.load_state_dict(inner)
            for mine, kept in zip(parts.model.buffers(), buffers, strict=True):
                mine.copy_(kept)
        batch = parts.batches.fetch(samples(step)[dist.get_rank()], step, dist.get_rank())
        optimizer.zero_grad()
        parts.task.loss_of(parts.model, batch).backward()
        optimizer.step()
        assert steps.after_step() == ((step + 1) % H == 0)
        sent.append(steps.wire_bytes()["bytes_per_step_sent"])
    own = [p.detach().clone() for p in parts.model.parameters()]
    with steps.agreed():
        assert all(map(same_bits, (p.detach() for p in parts.model.parameters()), steps.outer.agreed))
    assert all(map(same_bits, (p.detach() for p in parts.model.parameters()), own))
    steps.finish()
    return [p.detach() for p in parts.model.parameters()], sent


def begun(
    config: dict, how: object, knobs: dict, seed: int = 3
) -> tuple[Parts, LocalSteps, torch.optim.Optimizer]:
    torch.manual_seed(dist.get_rank())  # LocalSteps makes the ranks' different models equal
    parts = build(config, CPU)
    if dist.get_rank() == 1:
        nn.init.zeros_(next(iter(parts.model.parameters())))
    steps = LocalSteps(parts.model, how, inner_steps=H, seed=seed, **knobs)
    return parts, steps, parts.make_optimizer(list(parts.model.parameters()))


def scripts(configs: dict[str, dict]) -> list[tuple]:
    return [*(script(config, way) for way, config in configs.items()), in_bf16()]


def in_bf16() -> list[torch.Tensor]:
    """Return a rank's initial, final and agreed weights, for a bf16 model in channels_last layout."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(
        torch.bfloat16, memory_format=torch.channels_last
    )
    steps = LocalSteps(net, "e5m2", aps=True, inner_steps=2)
    first = net[0].weight.detach().clone()
    for _ in range(4):
        with torch.no_grad():
            net[0].weight += 0.1 * torch.randn(4, 3, 3, 3)
        steps.after_step()
    return [first, net[0].weight.detach(), steps.outer.agreed[0].detach()]


def test_two_ranks_have_the_bits_of_the_built_in_loop():
    configs = {way: config_of(typed) for way, (typed, _, _) in WAYS.items()}
    ranks = run_ranks(2, scripts, configs)
    for k, config in enumerate(configs.values()):
        expected = emulated(config)
        for found, sent in (of_rank[k] for of_rank in ranks):
            assert all(map(same_bits, found, expected))
            assert [n > 0 for n in sent] == [(step + 1) % H == 0 for step in range(STEPS)]
    (*_, of_first), (*_, of_second) = ranks
    assert all(map(torch.equal, of_first, of_second)), "the first rank's weights, then the agreed ones"
    first, weights, agreed = of_first
    assert weights.dtype == torch.bfloat16 and torch.equal(weights, agreed.bfloat16())
    assert agreed.dtype == torch.float32 and not torch.equal(first, weights)


def test_defaults_are_those_of_the_yaml():
    defaults = yaml.safe_load((Path(__file__).parents[2] / "conf" / "sync" / "local.yaml").read_text())
    of_call = {name: p.default for name, p in inspect.signature(LocalSteps).parameters.items()}
    for knob in ("outer_lr", "outer_momentum", "nesterov", "kahan", "rounding", "overflow", "requantise"):
        assert of_call[knob] == defaults[knob], knob
    steps = LocalSteps(nn.Linear(2, 2), "e4m3", inner_steps=2)
    assert (steps.outer.exchange.feedback is not None) == defaults["error_feedback"]


def test_a_single_process_needs_no_group():
    """Its outer step is a look ahead: with rate 1 and no momentum nothing changes."""
    model = nn.Linear(3, 2)
    steps = LocalSteps(model, "fp32", inner_steps=2, outer_lr=1.0, outer_momentum=0.0)
    with torch.no_grad():
        model.weight += 1
    before = model.weight.detach().clone()
    assert [steps.after_step() for _ in range(4)] == [False, True, False, True]
    torch.testing.assert_close(model.weight, before)
    with pytest.raises(ValueError, match="the state was saved by 2 ranks, but there are 1 ranks now"):
        steps.load_state_dict({"step": 1, "weights": {0: [], 1: []}, "outer": {}})


@pytest.mark.parametrize(
    ("model", "how", "options", "message"),
    [
        (nn.Linear(2, 2), "fp33", {}, "unknown format 'fp33'"),
        (nn.Linear(2, 2), "fp32", {"inner_steps": 0}, "inner_steps=0: must be a whole number"),
        (
            nn.Linear(2, 2),
            MinMax(2, "nearest_even"),
            {"aps": True},
            "aps or scaling cannot be combined with a Compressor object",
        ),
        (nn.Linear(2, 2), "e4m3", {"full_precision_layers": ["head.*"]}, "'head.\\*' matches no parameter"),
        (nn.Linear(2, 2), None, {"compressor": "top_q"}, "compressor='top_q': choose one of"),
        (nn.ReLU(), "fp32", {}, "ReLU has no parameter that requires a gradient"),
    ],
)
def test_settings_that_do_not_fit_are_refused(model, how, options, message):
    with pytest.raises(ValueError, match=message):
        LocalSteps(model, how, **{"inner_steps": 2, **options})


def test_the_example_learns(tmp_path):
    run_script(2, EXAMPLE, [], tmp_path)
    said = "".join((tmp_path / f"rank{rank}.log").read_text() for rank in range(2))
    found = re.findall(r"accuracy on 297 unseen digits: (\S+)%, (\S+) bits per parameter and step", said)
    assert len(found) == 2 and found[0] == found[1], said
    accuracy, bits = map(float, found[0])
    assert accuracy > 88 and 0.9 < bits < 1.2
