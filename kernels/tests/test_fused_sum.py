"""Exact and aligned sums, which are rounded once: compared with rational arithmetic and between backends."""

import math
import re
from fractions import Fraction

import custom_fp
import pytest
import torch
from custom_fp import _native, reference
from custom_fp.accumulators import native
from custom_fp.accumulators import reference as defined
from custom_fp.rounding import Rule

FORMATS = ["e3m0", "e2m1", "e4m3", "e5m2", "e8m7", "e4m3fnuz", "ue5m3", "posit8", "fp32"]
ROUNDINGS = [
    "nearest_even",
    "stochastic",
    "stochastic_3",
    "nearest_away",
    "toward_zero",
    "to_odd",
    "toward_negative",
]
ORDERS = [("exact", None), ("aligned", 3), ("aligned", 11), ("aligned", 23), ("aligned", 40)]


def terms(count: int, n: int, binades: int, seed: int = 0) -> list[torch.Tensor]:
    """Values of `binades` binades, zeros, and pairs that cancel."""
    g = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-binades // 2, (binades + 1) // 2, (count, n), generator=g)
    x = torch.ldexp(torch.randn(count, n, generator=g), exponents)
    x[torch.rand(count, n, generator=g) < 0.1] = 0.0
    x[-1, : n // 4] = -x[0, : n // 4]
    return list(x)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32 if x.dtype is torch.float32 else torch.int64)


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
            x = terms(count, 60, binades, seed=count)
            got = custom_fp.accumulate(x, fmt, order=order, width=width)
            for i, column in enumerate(torch.stack(x).T.tolist()):
                exact = aligned(column, width, emin) if width else sum(map(Fraction, column))
                want = custom_fp.quantize(torch.tensor([to_odd(exact)], dtype=torch.float64), fmt)
                assert got[i].item() == want.item(), (fmt, count, column)


@pytest.mark.parametrize(("order", "width"), ORDERS)
def test_the_kernels_make_the_definitions_bits(order: str, width: int | None) -> None:
    hostile = torch.tensor(
        [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-126), 3.4e38, 1.0, -3.4e38]
    )
    here = _native.isas()
    try:
        for isa in here:
            _native.use_isa(isa)
            for binades, n in ((6, 1), (60, 700), (250, 300)):
                x = terms(7, n, binades, seed=n)
                for i, term in enumerate(x):
                    term[: min(n, 10)] = hostile.roll(3 * i * i)[: min(n, 10)]
                for emin in (-126, -6):
                    got, want = (torch.empty(n, dtype=torch.float64) for _ in range(2))
                    native.fused_sum(x, width, emin, got)
                    defined.fused_sum(x, width, emin, want)
                    same = (bits(got) == bits(want)) | (got.isnan() & want.isnan())
                    assert same.all(), (isa, binades, emin)
    finally:
        _native.use_isa(here[-1])


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_packed_terms_orders_of_terms_and_parts_change_no_bit(fmt: str, rounding: str) -> None:
    try:
        rule = {"rounding": rounding, "seed": 5}
        x = [custom_fp.quantize(t, fmt) for t in terms(6, 203, 12)]
        custom_fp.quantize(x[0], fmt, **rule)
    except ValueError as error:
        assert "rounds to nearest only" in str(error)
        return
    for order, width in ORDERS:
        how = rule | {"order": order, "width": width}
        whole = custom_fp.accumulate(x, fmt, **how)
        assert torch.equal(bits(whole), bits(custom_fp.accumulate(x[::-1], fmt, **how)))
        parts = [
            custom_fp.accumulate([t[a:b] for t in x], fmt, offset=a, **how) for a, b in ((0, 72), (72, 203))
        ]
        assert torch.equal(bits(whole), bits(torch.cat(parts)))
        packed = custom_fp.accumulate_packed([custom_fp.pack(t, fmt) for t in x], fmt, 203, **how)
        assert torch.equal(packed, custom_fp.pack(whole, fmt))


def test_large_tensors_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "best"}, "order is 'best'; allowed: sequential, exact, aligned"),
        (
            {"order": "exact", "kahan": True},
            "order=exact rounds once, so there is no error to compensate",
        ),
        ({"order": "exact", "width": 4}, "width=4 requires order=aligned, not order=exact"),
        ({"order": "aligned"}, "width is None; order=aligned requires a width from 1 to 40"),
        ({"order": "aligned", "width": 41}, "width is 41; order=aligned requires a width from 1 to 40"),
    ],
)
def test_what_does_not_go_together_is_said(options: dict, says: str) -> None:
    x = torch.ones(8)
    with pytest.raises(ValueError, match=re.escape(says)):
        custom_fp.accumulate([x, x], "e4m3", **options)
    with pytest.raises(ValueError, match=re.escape(says)):
        custom_fp.accumulate_packed([custom_fp.pack(x, "e4m3")] * 2, "e4m3", 8, **options)


def test_doubles_and_too_many_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match="order=exact and order=aligned require float32"):
        custom_fp.accumulate([torch.ones(2, dtype=torch.float64)], "e4m3", order="exact")
    with pytest.raises(ValueError, match="width=40 can add at most 4096 tensors; got 4097"):
        custom_fp.accumulate([torch.ones(1)] * 4097, "e4m3", order="aligned", width=40)
