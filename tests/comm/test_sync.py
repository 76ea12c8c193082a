"""AllReduceSync: configuration, hybrid precision, bytes and statistics. The files test_*_law.py test its sums."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from bits import reduce, same_bits
from custom_fp import Format
from exchanges import ORDERS
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import nn

from cpdrun.comm import AllReduceSync, emulate_all_reduce
from cpdrun.comm.sums.magnitudes import NoMagnitudes
from cpdrun.comm.sums.scaling import APS, ScalingRule
from cpdrun.config.plan import plan
from cpdrun.train.build import build_sync
from cpdrun.train.duration import Duration

CONF = Path(__file__).parents[2] / "conf"
NAMES = ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]


def make(fmt: str = "e4m3", world_size: int = 2, **changes: object) -> AllReduceSync:
    knobs = yaml.safe_load((CONF / "sync" / "all_reduce.yaml").read_text()) | changes
    return instantiate(knobs, format=fmt, world_size=world_size, parameter_names=NAMES, _convert_="all")


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + worker)
    return [torch.randn(shape, generator=generator) for shape in ((3, 4), (3,), (5, 2), (2,))]


@pytest.mark.parametrize("order", ORDERS)
def test_each_layer_is_the_emulated_sum(order: str) -> None:
    workers = [gradients(w) for w in range(12)]
    results = reduce(make("e3m2", 12, scaling=APS(), order=order), workers)
    for result, *of_layer in zip(results, *workers, strict=True):
        assert same_bits(result, emulate_all_reduce(of_layer, "e3m2", aps=True, order=order))


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


def test_bytes_of_a_real_worker() -> None:
    # 12, 3, 10 and 2 values: 2, 1, 2 and 1 blocks of 8; on 2 machines 3 blocks a shard, sent twice
    sync = make("e4m3")
    reduce(sync, [gradients(w) for w in range(2)])
    assert sync.wire_bytes() == {"bytes_per_step_sent": 0, "bytes_per_step_real_worker": 2 * 3 * 8}


@pytest.mark.parametrize("order", ["rank", "tree"])
@pytest.mark.parametrize(
    ("fmt", "overflow"),
    [
        ("e2m1fn", "infinity"),  # has neither: 6.0
        ("e3m0", "infinity"),  # has no NaN: inf
        ("e4m3fn", "infinity"),  # has no inf: NaN
        ("e4m3", "saturate"),  # inf becomes the largest value, NaN stays
        ("e3m0", "saturate"),  # NaN becomes inf, and that the largest value
        ("e4m3", "infinity"),
    ],
)
def test_inf_and_nan_are_counted_even_if_the_format_makes_numbers_of_them(
    fmt: str, overflow: str, order: str
) -> None:
    """Worker 1 has a NaN and two inf in one layer, and worker 3 a NaN in another, which is in full precision."""
    given = {"overflow": overflow, "order": order, "full_precision": {"layers": ["fc.bias"]}}
    sync = make(fmt, 4, scaling=APS(), **given)
    workers = [[torch.ones(g.shape) for g in gradients(w)] for w in range(4)]
    workers[1][0][0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    workers[3][3][1] = float("nan")
    stacks = [torch.stack(grads) for grads in zip(*workers, strict=True)]
    rows = sync.statistics(stacks, sync.reduce_stacked(stacks, step=0, epoch=0))
    assert (sync.nonfinite, [row["nonfinite"] for row in rows]) == (4, [3, 0, 0, 1])


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
    """Hydra would pass a dataclass as a dict."""

    shift_by: int
    magnitudes = NoMagnitudes

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        return self.shift_by


def test_a_user_rule_is_chosen_by_its_name() -> None:
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
