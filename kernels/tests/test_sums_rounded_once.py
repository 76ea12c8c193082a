"""The sum of two values, to odd and then rounded, is the exact sum rounded once: every pair of values of small formats,
in each rounding, by compiled code. float64 holds those sums exactly, which rationals say."""

from fractions import Fraction
from itertools import product

import custom_fp
import pytest
import torch
from custom_fp import reference
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rounding, Rule

SMALL = [
    f"e{e}m{m}" for e, m in product((2, 3, 4, 5), (0, 1, 2, 3))
]  # sums of two values fit float64, exactly
SMALL += ["e4m3fn", "e4m3fnuz", "e2m1fn", "ue5m3", "e5m2b-40"]
WORDS = [*Rounding, "stochastic_3", "stochastic_even_4"]


def pairs(fmt: Format) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.tensor(fmt.values(), dtype=torch.float32)
    values = values[values.isfinite()]
    return values.repeat_interleave(len(values)), values.repeat(len(values))


@pytest.mark.parametrize("name", SMALL)
def test_every_pair_of_values(name):
    fmt = Format.parse(name)
    a, b = pairs(fmt)
    exact = 0.0 + a.double() + b.double()  # a sum starts at +0
    for word in WORDS:
        rule, random = Rule(word, seed=2), None
        if rule.is_stochastic:  # the second rounding's: a alone is a value
            random = reference.random_words(len(a), 4, 2, a.device)
        once = torch.empty(len(a))
        reference.write(reference.round_to_format(exact, fmt, rule, random), once)
        got = custom_fp.accumulate([a, b], fmt, rounding=word, seed=2)
        assert torch.equal(got.view(torch.int32), once.view(torch.int32)), word


@pytest.mark.parametrize("name", ["e2m1", "e3m2", "e4m0"])
def test_float64_holds_those_sums(name):
    a, b = pairs(Format.parse(name))
    sums = (a.double() + b.double()).tolist()
    assert all(
        Fraction(s) == Fraction(x) + Fraction(y) for s, x, y in zip(sums, a.tolist(), b.tolist(), strict=True)
    )
