"""What AllReduceSync adds to a sum: configuration, hybrid precision, error feedback, counting, state."""

import inspect
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from bits import reduce, same_bits
from custom_fp import Format
from hydra.errors import InstantiationException
from hydra.utils import get_class, get_object, instantiate
from torch import nn

from cpdrun.comm import AllReduceSync, GradientSync, emulate_all_reduce
from cpdrun.comm.sums.magnitudes import NoMagnitudes
from cpdrun.comm.sums.scaling import APS, ScalingRule
from cpdrun.config.plan import plan
from cpdrun.train.build import build_sync
from cpdrun.train.duration import Duration

CONF = Path(__file__).parents[2] / "conf"
NAMES = ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]
GIVEN_BY_THE_RUN = {
    "run_settings",  # the keyword arguments of a class that passes them on
    "format",
    "scaling",
    "world_size",
    "seed",
    "parameter_names",
    "full_precision",
    "epochs",
    "group",
}


def make(fmt: str = "e4m3", world_size: int = 2, **changes: object) -> AllReduceSync:
    knobs = yaml.safe_load((CONF / "sync" / "all_reduce.yaml").read_text()) | changes
    return instantiate(knobs, format=fmt, world_size=world_size, parameter_names=NAMES, _convert_="all")


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + worker)
    return [torch.randn(shape, generator=generator) for shape in ((3, 4), (3,), (5, 2), (2,))]


GRADIENT_SYNCS = [
    path
    for path in sorted((CONF / "sync").glob("*.yaml"))
    if not path.stem.startswith("gossip_") and path.stem != "local"
]


@pytest.mark.parametrize("path", GRADIENT_SYNCS, ids=lambda path: path.stem)
def test_a_sync_yaml_spells_every_knob_of_its_class(path: Path) -> None:
    spec = yaml.safe_load(path.read_text())
    make_sync = get_object(spec.pop("_target_"))
    assert set(spec) == set(inspect.signature(make_sync).parameters) - GIVEN_BY_THE_RUN
    sync = make_sync(format="fp32", world_size=1, parameter_names=["a"], **spec)
    assert isinstance(sync, GradientSync)


@pytest.mark.parametrize("path", sorted((CONF / "scaling").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_scaling_yaml_spells_every_knob_of_its_class(path: Path) -> None:
    spec = yaml.safe_load(path.read_text())
    cls = get_class(spec["_target_"])
    assert set(spec) - {"_target_"} == set(inspect.signature(cls).parameters)
    assert isinstance(instantiate(spec), ScalingRule)


def test_each_layer_is_summed_as_the_emulation_sums_it() -> None:
    workers = [gradients(w) for w in range(4)]
    ours = reduce(make("e3m2", 4, scaling=APS()), workers)
    for p, result in enumerate(ours):
        assert same_bits(result, emulate_all_reduce([worker[p] for worker in workers], "e3m2", aps=True))


def test_full_precision_layers_and_epochs() -> None:
    workers = [gradients(w) for w in range(2)]
    exact = [a + b for a, b in zip(*workers, strict=True)]
    hybrid = {"layers": ["fc.*"], "first_epochs": 1, "last_epochs": 2}
    sync = make("e3m0", full_precision=hybrid, epochs=5)
    for epoch in range(5):
        result = reduce(sync, workers, step=epoch, epoch=epoch)
        in_full = [same_bits(a, b) for a, b in zip(result, exact, strict=True)]
        assert in_full == ([False, False, True, True] if epoch in (1, 2) else [True] * 4)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    hybrid = {"layers": ["head.*"], "first_epochs": 0, "last_epochs": 0}
    with pytest.raises(InstantiationException, match=r"'head\.\*' matches no parameter.*conv\.weight"):
        make(full_precision=hybrid)


def test_what_was_sent_and_the_residual_are_the_gradient() -> None:
    # values with few digits, so that their sum with a residual is exact
    sync = make("e4m1", world_size=1, scaling=APS(), error_feedback=True)
    generator = torch.Generator().manual_seed(0)
    given, sent = torch.zeros(3, 4), torch.zeros(3, 4)
    for step in range(20):
        gradient = torch.randint(-64, 65, (3, 4), generator=generator) / 64
        rest = [torch.zeros(shape) for shape in ((3,), (5, 2), (2,))]
        given += gradient
        sent += reduce(sync, [[gradient, *rest]], step=step)[0]
        residual = sync.state_dict()["residuals"]["0/conv.weight"].view(3, 4)
        assert torch.equal(sent + residual, given)
    assert residual.abs().max() > 0


def test_error_feedback_forgets_what_is_not_finite() -> None:
    sync = make("e4m3", world_size=1, error_feedback=True)
    broken = gradients(0)
    broken[0][0, 0], broken[1][1] = float("nan"), float("inf")
    result = reduce(sync, [broken])
    assert sync.nonfinite == 2 and torch.isnan(result[0][0, 0])
    assert all(torch.isfinite(g).all() for g in reduce(sync, [gradients(1)], step=1, epoch=0))


def test_a_resumed_sync_continues_bit_for_bit() -> None:
    options = {"scaling": {"_target_": "cpdrun.comm.sums.scaling.DelayedAPS", "margin": 1}}
    options |= {"error_feedback": True, "rounding": "stochastic", "seed": 3}
    sync, resumed = make("e4m1", **options), make("e4m1", **options)
    for step in range(3):
        reduce(sync, [gradients(w, step) for w in range(2)], step=step)
    resumed.load_state_dict(sync.state_dict())
    for step in range(3, 6):
        grads = [gradients(w, step) for w in range(2)]
        pairs = zip(reduce(sync, grads, step=step), reduce(resumed, grads, step=step), strict=True)
        assert all(same_bits(a, b) for a, b in pairs)


def test_bytes_of_a_real_worker() -> None:
    # 12, 3, 10 and 2 values: 2, 1, 2 and 1 blocks of 8; on 2 machines 3 blocks a shard, sent twice
    sync = make("e4m3")
    reduce(sync, [gradients(w) for w in range(2)])
    assert sync.wire_bytes() == {"bytes_per_step_sent": 0, "bytes_per_step_real_worker": 2 * 3 * 8}


def test_a_wrong_number_of_workers_is_refused() -> None:
    with pytest.raises(
        ValueError, match="this rank emulates 2 workers, but gradients of 1 workers were passed"
    ):
        reduce(make(), [gradients(0)])


@pytest.mark.parametrize("fmt", ["fp32", "e4m3"])
def test_gradients_that_are_not_those_of_the_parameters_are_refused(fmt: str) -> None:
    """More of them came back as memory that nobody had written; one worker's fp32 gradient passed unlooked at."""
    sync = AllReduceSync(format=fmt, world_size=1, parameter_names=["a", "b"])
    one, two = torch.ones(1, 3), torch.ones(2, 3)
    for stacks, says in (
        ([one, one, one], "there are 2 parameters, but 3 gradients were passed"),
        ([one], "there are 2 parameters, but 1 gradients were passed"),
        ([one, two], "this rank emulates 1 workers, but gradients of 2 workers were passed"),
    ):
        with pytest.raises(ValueError, match=says):
            sync.reduce_stacked(stacks, step=0, epoch=0)


@pytest.mark.parametrize("fmt", ["fp32", "e4m3"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_no_parameters_have_no_gradients(fmt: str, world_size: int) -> None:
    sync = AllReduceSync(format=fmt, world_size=world_size, parameter_names=[])
    assert sync.reduce_stacked([], step=0, epoch=0) == [] and sync.nonfinite == 0


def test_statistics_of_a_layer_worked_out_by_hand() -> None:
    # e3m0 holds 0 and 0.25 .. 8; an eighth is a tie with zero, which is even
    sync = make("e3m0", full_precision={"layers": ["fc.*"], "first_epochs": 0, "last_epochs": 0})
    first = [torch.tensor(x) for x in ([1.0, 0.125, 0.0], [float("nan"), 100.0], [3.0], [0.0])]
    second = [torch.tensor(x) for x in ([1.0, 2.0**-20, 0.0], [1.0, 1.0], [4.0], [0.0])]
    stacks = [torch.stack(pair) for pair in zip(first, second, strict=True)]
    result = sync.reduce_stacked(stacks, step=0, epoch=0)
    conv, bias, fc, zero = sync.statistics(stacks, result)
    common = {"shift": 0, "overflow": 0.0, "nonfinite": 0}
    exact = (4 + 0.125000954**2) ** 0.5
    assert conv == common | {
        "layer": "conv.weight",
        "format": "e3m0",
        "exponent_min": -20,
        "exponent_max": 0,
        "underflow": 0.5,
        "sum_error": pytest.approx(0.125000954 / exact, rel=1e-5),
    }
    assert (bias["nonfinite"], bias["overflow"], bias["sum_error"]) == (1, 1 / 3, None)
    assert (fc["format"], fc["sum_error"], fc["underflow"]) == ("fp32", 0.0, 0.0)
    assert (zero["exponent_min"], zero["exponent_max"], zero["sum_error"]) == (None, None, None)


@dataclass(frozen=True)
class Fixed(ScalingRule):
    """A rule that a user may write: Hydra would hand a dataclass over as a dict."""

    shift_by: int
    magnitudes = NoMagnitudes

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        return self.shift_by


def test_a_rule_of_ones_own_by_its_name() -> None:
    typed = [
        "name=x",
        "format=e4m3",
        "world_size=2",
        f"scaling._target_={__name__}.Fixed",
        "+scaling.shift_by=3",
    ]
    (run,) = plan([*typed, "~scaling.margin"]).runs
    sync = build_sync(run.config, nn.Linear(3, 2), Duration(steps_per_epoch=1, steps=1))
    sync.reduce_stacked([torch.ones(2, 2, 3), torch.ones(2, 2)], step=0, epoch=0)
    rows = sync.statistics([torch.ones(2, 2, 3), torch.ones(2, 2)], [torch.ones(2, 3), torch.ones(2)])
    assert [row["shift"] for row in rows] == [3, 3]
