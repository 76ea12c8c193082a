"""Exact and aligned sums are rounded once: compared with rational arithmetic. test_backends.py compares the kernels."""

import math
from fractions import Fraction

import custom_fp
import pytest
import torch
from custom_fp import reference
from custom_fp.accumulators import reference as defined
from custom_fp.rounding import Rule
from tensors import same_bits

FORMATS = ["e3m0", "e4m3", "e8m7", "e4m3fnuz", "ue5m3", "posit8", "fp32"]
ROUNDINGS = ["nearest_even", "stochastic", "stochastic_3", "to_odd", "toward_negative"]
ORDERS = [("exact", None), ("aligned", 3), ("aligned", 11), ("aligned", 23), ("aligned", 40)]


def terms(count: int, n: int, binades: int, seed: int = 0) -> list[torch.Tensor]:
    """Values of `binades` binades, zeros, and pairs that cancel."""
    g = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-binades // 2, (binades + 1) // 2, (count, n), generator=g)
    x = torch.ldexp(torch.randn(count, n, generator=g), exponents)
    x[torch.rand(count, n, generator=g) < 0.1] = 0.0
    x[-1, : n // 4] = -x[0, : n // 4]
    return list(x)


def aligned(values: list[float], width: int, emin: int) -> Fraction:
    exponents = [max(math.frexp(v)[1] - 1, emin) if v else -126 for v in values]
    unit = Fraction(2) ** (max(exponents) - width)
    return sum((math.trunc(Fraction(v) / unit) * unit for v in values), Fraction(0))


def to_odd(exact: Fraction) -> float:
    """The double that rounds as the rational does."""
    near = float(exact)
    if Fraction(near) == exact:
        return near
    inner = near if abs(Fraction(near)) < abs(exact) else math.nextafter(near, 0.0)
    is_odd = math.frexp(inner)[0] * 2**53 % 2
    return inner if is_odd else math.nextafter(inner, math.copysign(math.inf, inner))


@pytest.mark.parametrize("binades", [4, 30, 200])
@pytest.mark.parametrize(("order", "width"), ORDERS)
def test_one_rounding_of_the_rational_sum(binades: int, order: str, width: int | None) -> None:
    for fmt in ("e4m3", "e8m7", "fp32"):
        emin = custom_fp.Format.parse(fmt).emin
        for count in (1, 2, 9):
            x = terms(count, 30, binades, seed=count)
            got = custom_fp.accumulate(x, fmt, order=order, width=width)
            for i, column in enumerate(torch.stack(x).T.tolist()):
                exact = aligned(column, width, emin) if width else sum(map(Fraction, column))
                want = custom_fp.quantize(torch.tensor([to_odd(exact)], dtype=torch.float64), fmt)
                assert got[i].item() == want.item(), (fmt, count, column)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_packed_terms_other_orders_and_parts_give_the_same_bits(fmt: str, rounding: str) -> None:
    rule = {"rounding": rounding, "seed": 5}
    x = [custom_fp.quantize(t, fmt) for t in terms(6, 203, 12)]
    for order, width in ORDERS:
        how = rule | {"order": order, "width": width}
        whole = custom_fp.accumulate(x, fmt, **how)
        assert same_bits(whole, custom_fp.accumulate(x[::-1], fmt, **how))
        parts = [
            custom_fp.accumulate([t[a:b] for t in x], fmt, offset=a, **how) for a, b in ((0, 72), (72, 203))
        ]
        assert same_bits(whole, torch.cat(parts))
        packed = custom_fp.accumulate_packed([custom_fp.pack(t, fmt) for t in x], fmt, 203, **how)
        assert torch.equal(packed, custom_fp.pack(whole, fmt))


def test_large_tensors_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("custom_fp.accumulators.fused_sum._TERMS_PER_PART", 1)
    x = terms(3, 10_000, 20)
    how = {"order": "exact", "rounding": "stochastic", "seed": 3, "offset": 17}
    got = custom_fp.accumulate(x, "e4m3", **how)
    total = torch.empty(10_000, dtype=torch.float64)
    defined.fused_sum(x, None, -6, total)
    want = torch.empty(10_000)
    reference.quantize(total, custom_fp.Format.parse("e4m3"), Rule("stochastic", seed=3, offset=17), want)
    assert torch.equal(got, want)
    data = custom_fp.accumulate_packed([custom_fp.pack(t, "e3m1") for t in x], "e3m1", 10_000, order="exact")
    members = [custom_fp.quantize(t, "e3m1") for t in x]
    assert torch.equal(data, custom_fp.pack(custom_fp.accumulate(members, "e3m1", order="exact"), "e3m1"))


def test_small_values_that_a_chain_loses_survive() -> None:
    x = [torch.tensor([1.0]), *[torch.tensor([2.0**-5])] * 32]
    assert custom_fp.accumulate(x, "e4m3").item() == 1.0
    assert custom_fp.accumulate(x, "e4m3", order="exact").item() == 2.0
    assert custom_fp.accumulate(x, "e4m3", order="aligned", width=5).item() == 2.0
    assert custom_fp.accumulate(x, "e4m3", order="aligned", width=4).item() == 1.0
