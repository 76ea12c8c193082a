"""Stochastic rounding with few random bits, wherever stochastic rounding is supported: sums, compressors, updates."""

import pytest
import torch

from cpdrun.comm.compressors.min_max import MinMax
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.sums.sum import Sum
from cpdrun.sweep import plan
from cpdrun.train.precision.int8 import min_max_quantize
from cpdrun.train.precision.optimizer_steps import WeightUpdate

MOST = 1.0 + 0.25 * 15 / 16  # of the way up from 1 to the next e5m2: with one bit, half of them go


def half_of(went_up):
    return 0.4 < went_up.double().mean() < 0.6


def test_compressors_use_the_given_number_of_random_bits():
    x_1xn = torch.full((1, 4000), MOST)
    rounded = Rounded("e5m2", False, "stochastic_1")
    assert half_of(rounded.decompress(rounded.compress(x_1xn, [("key",)]), 4000) > 1.0)
    x_1xn = torch.cat([torch.tensor([[0.0, 3.0]]), torch.full((1, 4000), 1 + 15 / 16)], 1)
    levels = MinMax(2, "stochastic_1")
    assert half_of(levels.decompress(levels.compress(x_1xn, [("key",)]), 4002)[0, 2:] > 1.5)
    assert half_of(min_max_quantize(x_1xn, 2, "stochastic_1")[0, 2:] > 1.5)


def test_updates_use_the_given_number_of_random_bits():
    weight = torch.ones(4000)
    rule = WeightUpdate(["e5m2"], "stochastic_1", kahan=False, seed=0)
    rule.apply_([weight], [weight.double() * (MOST - 1)])
    assert half_of(weight > 1.0)


def test_runs_and_recipes_accept_the_number_of_bits():
    typed = ["name=x", "format=e5m2", "sync.rounding=stochastic,stochastic_8", "seed=0"]
    assert all(Sum("e5m2", rounding=run.config["sync"]["rounding"]).is_stochastic for run in plan(typed).runs)
    typed = ["name=x", "recipe=nvfp4", "ingredients.rounding=stochastic,stochastic_8", "seed=0"]
    plain, few = (run.config["precision"]["rules"] for run in plan(typed).runs)
    words = [[rule["rounding"] for rule in rules if "rounding" in rule] for rules in (plain, few)]
    assert words == [["stochastic"] * len(words[0]), ["stochastic_8"] * len(words[0])] and words[0]


@pytest.mark.parametrize("make", [lambda w: Sum("e5m2", rounding=w), lambda w: Rounded("e5m2", False, w)])
def test_a_bad_number_of_bits_is_one_line(make):
    with pytest.raises(ValueError, match=r"\A.*stochastic_1 to stochastic_31.*\Z"):
        make("stochastic_40")
