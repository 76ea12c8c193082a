"""`Rule`: the names of roundings and overflows, and how they are passed to the kernels."""

import re
from pathlib import Path

import custom_fp
import pytest
import torch
from custom_fp import Overflow, Rounding, Rule


def test_a_member_is_as_good_as_its_word():
    x = torch.randn(100)
    for rounding in Rounding:
        for overflow in Overflow:
            words = {"rounding": str(rounding), "overflow": str(overflow)}
            members = {"rounding": rounding, "overflow": overflow}
            a, b = (custom_fp.quantize(x, "e2m1", seed=3, **rule) for rule in (words, members))
            assert torch.equal(a, b)
    compiled = torch.compile(
        lambda x: custom_fp.quantize(x, "e2m1", rounding=Rounding.TOWARD_ZERO),
        fullgraph=True,
        backend="aot_eager",
    )
    expected = custom_fp.quantize(x, "e2m1", rounding="toward_zero")
    assert torch.equal(compiled(x), expected)
    rounded = torch.func.vmap(lambda x: custom_fp.quantize(x, "e2m1", rounding=Rounding.TOWARD_ZERO))(x)
    assert torch.equal(rounded, expected)
    assert Rule("stochastic", "saturate", 3) == Rule(Rounding.STOCHASTIC, Overflow.SATURATE, 3, 0)


def test_the_numbers_are_those_of_the_kernels():
    header = Path(custom_fp.__file__).parent
    modes = re.findall(r"enum Mode[^{]*{([^}]*)}", (header / "csrc" / "custom_fp.h").read_text())[0]
    assert " ".join(modes.split()) == ", ".join(f"{word} = {word.mode}" for word in Rounding)
    overflows = re.findall(r"enum Overflow {([^}]*)}", (header / "csrc" / "custom_fp.h").read_text())[0]
    assert overflows.strip() == ", ".join(f"{word} = {word.mode}" for word in Overflow)
    assert Rule("stochastic", "saturate", -1, 7).flat == (2, 1, 2**64 - 1, 7, 0xFFFFFFFE)
    assert Rule("stochastic_5", seed=3).flat == (2, 0, 3, 0, 0xF8000000)
    assert Rule().flat[:4] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rounding": "up"}, "rounding is 'up'; allowed: nearest_even, toward_zero, stochastic"),
        ({"overflow": None}, "overflow is None; allowed: infinity, saturate"),
        ({"offset": -1}, "offset is -1; it counts elements, from 0 to"),
        ({"offset": 1 << 63}, "it counts elements"),
    ],
)
def test_errors_say_what_is_allowed(rule, message):
    with pytest.raises(ValueError, match=message):
        Rule(**rule)
    with pytest.raises(ValueError, match=message):
        custom_fp.quantize(torch.ones(2), "e4m3", **rule)
    with pytest.raises(ValueError, match=message):
        custom_fp.quantize(torch.ones(2, requires_grad=True), "e4m3", **rule)
