"""APS: exact exponents, one agreement; the delayed rule."""

import math
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
from custom_fp import Format
from ranks import run_ranks

from cpdrun.comm import emulate_all_reduce
from cpdrun.comm.sums.magnitudes import Agreement, largest_magnitude, sum_exponent
from cpdrun.comm.sums.orders import order_named
from cpdrun.comm.sums.scaling import APS, DelayedAPS, Shifts
from cpdrun.comm.workers import Workers

E4M3 = Format.parse("e4m3")


@pytest.mark.parametrize("summands", [1, 2, 3, 5, 8, 255, 256])
def test_exponents_are_exact_over_all_of_float32(summands: int) -> None:
    patterns = [1, 2, 3, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3F800001, 0x3F7FFFFF, 0x7F7FFFFF]
    patterns += torch.randint(1, 0x7F800000, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    for magnitude in torch.tensor(patterns, dtype=torch.int32).view(torch.float32).tolist():
        bound = Fraction(magnitude) * summands
        exponent = sum_exponent(magnitude, summands)
        assert Fraction(2) ** (exponent - 1) < bound <= Fraction(2) ** exponent


@pytest.mark.parametrize(
    ("values", "largest"),
    [
        ([], 0.0),
        ([0.0, -0.0], 0.0),
        ([1.0, -3.0], 3.0),
        ([2.0**-149, 0.0], 2.0**-149),
        ([math.inf, -2.0, math.nan], 2.0),
        ([math.nan, math.inf], 0.0),
    ],
)
def test_largest_magnitude_is_that_of_the_finite_values(values: list[float], largest: float) -> None:
    assert largest_magnitude(torch.tensor(values)).item() == largest


def agree(_: None = None) -> list[float]:
    mine = [
        torch.tensor(2.0 ** -(140 + dist.get_rank())),
        torch.tensor(float(dist.get_rank())),
        torch.tensor(0.0),
    ]
    return Agreement(lambda: mine, Workers.of_group(dist.get_world_size())).wait()


def test_all_ranks_agree_on_the_largest() -> None:
    for agreed in run_ranks(3, agree):
        assert agreed == [2.0**-140, 2.0, 0.0]


def ask(shifts: Shifts, names: list[str], *magnitudes: float, summands: int = 1) -> list[int]:
    """Of one group of workers."""
    (level,) = order_named("rank").levels(summands)
    local = [torch.tensor(magnitude) for magnitude in magnitudes]
    (of_group,), _ = shifts.of_level(level, names, lambda: local, E4M3, Workers(summands))
    return of_group


def test_aps_does_not_shift_a_zero_layer_and_applies_its_margin() -> None:
    names = ["a", "b"]
    assert ask(Shifts(APS()), names, 0.0, 1.0, summands=8) == [0, E4M3.emax - 3]
    assert ask(Shifts(APS(margin=2)), names, 0.0, 1.0, summands=8) == [0, E4M3.emax - 5]


def test_delayed_aps_uses_the_step_before() -> None:
    shifts = Shifts(DelayedAPS(margin=0))
    found = [ask(shifts, ["a"], magnitude) for magnitude in (1.0, 4.0, 16.0)]
    assert found == [[E4M3.emax], [E4M3.emax], [E4M3.emax - 2]]


def test_delayed_aps_identifies_layers_by_name_in_any_buckets() -> None:
    shifts = Shifts(DelayedAPS(margin=0))
    ask(shifts, ["a", "b"], 1.0, 2.0)
    ask(shifts, ["c"], 4.0)
    assert ask(shifts, ["b", "c"], 64.0, 64.0) == [E4M3.emax - 1, E4M3.emax - 2]
    assert ask(shifts, ["a"], 64.0) == [E4M3.emax]


def test_delayed_aps_agrees_at_once_only_for_layers_that_were_zero() -> None:
    shifts = Shifts(DelayedAPS(margin=0))
    ask(shifts, ["a", "b"], 0.0, 4.0)
    assert ask(shifts, ["a", "b"], 4.0, 64.0) == [E4M3.emax - 2, E4M3.emax - 2]


def test_delayed_aps_continues_from_a_checkpoint() -> None:
    shifts, resumed = Shifts(DelayedAPS()), Shifts(DelayedAPS())
    ask(shifts, ["a"], 4.0)
    resumed.magnitudes.load_state_dict(shifts.magnitudes.state_dict())
    ours = ask(shifts, ["a"], 64.0)
    assert ask(resumed, ["a"], 64.0) == ours == [E4M3.emax - 3]
    with pytest.raises(ValueError, match="has no state, but the checkpoint has"):
        Shifts(APS()).magnitudes.load_state_dict(shifts.magnitudes.state_dict())


@pytest.mark.parametrize("name", ["posit8", "takum8", "hif8"])
def test_aps_halves_the_error_of_formats_of_tapered_precision(name):
    gradients = [torch.randn(500, generator=torch.Generator().manual_seed(i)) * 1e-4 for i in range(4)]
    exact = sum(g.double() for g in gradients)
    with_aps, without = (
        float((emulate_all_reduce(gradients, name, aps=aps) - exact).norm()) for aps in (True, False)
    )
    assert with_aps < without / 2
