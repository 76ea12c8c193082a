"""Tables against a direct count: every element rounded by custom_fp.quantize, in float64, one by one.

Counts are equal bit for bit. Sums of a table have another order and are exact except for the last products. Each is a
sum of at most n terms of one sign, or a difference of two such sums (error, product), so it differs from the direct sum
by less than n 2^-52 of the sum of the terms' magnitudes. The tests allow 1e-11 of that, for n below 2^15.
"""

import math
from dataclasses import fields

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import Format
from hypothesis import given, settings
from hypothesis import strategies as st

from cpdrun.whatif.collect import histogram as cells
from cpdrun.whatif.collect import moments as of_tables
from cpdrun.whatif.collect.observation import TensorStatistics
from cpdrun.whatif.simulate.rounding_error import rounding_error_of, rounding_error_of_values

FORMATS = ["e5m2", "e4m3fn", "e3m0", "e2m1fn", "e1m2", "e1m2fn", "e1m0", "e4m0fn", "e8m0", "e8m10", "e5m10"]
FORMATS += ["e5m2b20", "e4m3b-30"]
SHIFTS = (0, 7, -9, 130, -140)


def seen_of(*tensors: torch.Tensor) -> TensorStatistics:
    binades, rows = of_tables.add(*of_tables.tables(tensors))
    return TensorStatistics(
        binades.numpy().astype(np.int16), rows.numpy(), 0, 0, 0.0, sum(x.numel() for x in tensors)
    )


def check(x: torch.Tensor, seen: TensorStatistics, fmt: Format, shift: int) -> None:
    """Compare `rounding_error_of` with errors that are computed value by value.

    A value counts as beyond the largest one if it would overflow without saturation. Its error is that of the
    largest value, to which it saturates.
    """
    finite = x[torch.isfinite(x) & (x != 0)].double()
    scaled = finite * 2.0**shift
    rounded = custom_fp.quantize(scaled, fmt).double()
    taken = custom_fp.quantize(scaled, fmt, overflow="saturate").double()
    past = (~torch.isfinite(rounded)) | (rounded.abs() > fmt.max)
    if (
        not fmt.has_inf and not fmt.has_nan
    ):  # it always saturates: a format with one more binade has larger values
        wide = Format(fmt.exponent_bits + 1, fmt.mantissa_bits, fmt.bias, "ieee")
        past = custom_fp.quantize(scaled, wide).double().abs() > fmt.max
    q, a = taken.abs() * 2.0**-shift, finite.abs()
    e = q - a
    found = rounding_error_of(seen, fmt, shift)
    assert (found.count, found.to_zero) == (len(a), int(((taken == 0) & ~past).sum()))
    assert found.beyond == int(past.sum())
    square = max(float((a * a).sum()), 1e-300)
    for got, terms in ((found.error, e), (found.squared_error, e * e), (found.product, a * e)):
        assert abs(got - float(terms.sum())) <= 1e-11 * max(square, float(terms.abs().sum()))
    assert math.isclose(found.magnitude, float(a.sum()), rel_tol=1e-11)
    assert math.isclose(found.square, float((a * a).sum()), rel_tol=1e-11)


def hard_values() -> torch.Tensor:
    """Every value of small formats with its midpoints and their neighbours, in many binades, subnormal ones
    included."""
    mantissas = torch.arange(0, 1 << 12, dtype=torch.int64) << 11  # all of 12 bits: midpoints of 11
    near = torch.cat([mantissas, mantissas + 1, mantissas - 1]) % (1 << 23)
    fields = torch.tensor([0, 1, 2, 60, 110, 120, 124, 126, 127, 128, 130, 143, 254])
    bits = (fields[:, None] << 23 | near).reshape(-1).to(torch.int32)
    x = bits.view(torch.float32)
    return torch.cat([x, -x[::3], torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])])


@pytest.fixture(scope="module")
def hard():
    x = hard_values()
    return x, seen_of(x)


@pytest.mark.parametrize("name", FORMATS)
def test_every_scalar_format_and_shift_counts_as_a_direct_count(hard, name):
    for shift in SHIFTS:
        check(*hard, Format.parse(name), shift)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(0, 10),
    st.sampled_from(["ieee", "fn"]),
    st.integers(-40, 40),
)
def test_random_values_formats_and_shifts(values, e, m, family, shift):
    if family == "fn" and e == 8 and m:
        return
    x = torch.tensor(values)
    check(x, seen_of(x), Format(e, m, None, family), shift)


def test_errors_of_wide_formats_are_bounds():
    torch.manual_seed(0)
    x = torch.randn(5000) * torch.exp2(torch.randint(-20, 3, (5000,)))
    for name in ("e8m11", "e5m12", "e8m16"):
        fmt = Format.parse(name)
        found, q = rounding_error_of(seen_of(x), fmt), custom_fp.quantize(x, fmt).double()
        e = q - x.double()
        assert found.to_zero == int((q == 0).sum())
        assert float((e * e).sum()) <= found.squared_error <= 16 * float((e * e).sum())
    assert rounding_error_of(seen_of(x), Format.parse("fp32")).squared_error == 0


def test_values_and_their_table_have_the_same_errors(hard):
    x, fmt = hard[0][::7], Format.parse("e4m3")
    by_table = rounding_error_of(seen_of(x), fmt)
    by_value = rounding_error_of_values(x.numpy(), custom_fp.quantize(x, fmt).numpy(), fmt.max)
    for name in ("count", "to_zero", "beyond"):
        assert getattr(by_table, name) == getattr(by_value, name)
    assert math.isclose(by_table.squared_error, by_value.squared_error, rel_tol=1e-11)


def test_tables_add_up_and_do_not_change_their_input():
    torch.manual_seed(1)
    x, y = torch.randn(3000), torch.randn(70) * 1e-3
    before = x.clone()
    both, (together,) = of_tables.add(*of_tables.tables([x, y])), of_tables.tables([torch.cat([x, y])])
    assert torch.equal(both[0], together[0]) and torch.allclose(both[1], together[1], rtol=1e-11, atol=0)
    assert torch.equal(x, before)
    empty = of_tables.tables([torch.zeros(5), torch.zeros(0), torch.tensor([math.nan])])
    assert [len(k) for k, _ in empty] == [0, 0, 0]


def test_all_values_of_a_cell_round_alike():
    low_C, q_CxS = cells.roundings(torch.device("cpu"))
    odd = torch.arange(len(low_C)) % 2 == 1
    for s, m in enumerate(of_tables.SPACINGS):
        fmt = Format(2, 0, 0) if m < 0 else Format(8, m)
        for offset in (2.0**-23, 2.0**-11 - 2.0**-23):  # both ends of a cell, from within
            assert torch.equal(custom_fp.quantize((low_C + offset).float(), fmt)[odd].double(), q_CxS[odd, s])


def test_the_extension_equals_the_matrices_bit_for_bit(hard):
    """Every cell of thirteen binades from both sides, random bits, and tensors without values."""
    rng = torch.manual_seed(2)
    any_bits = torch.randint(-(1 << 31), (1 << 31) - 1, (50_000,), generator=rng).int().view(torch.float32)
    flat = [hard[0], any_bits, torch.zeros(3), torch.tensor([math.inf, 1e-40]), torch.randn(5, generator=rng)]
    (sums_reference, expected), (sums_native, found) = cells.sums_reference(flat), cells.sums_native(flat)
    for one, other in zip(sums_reference, sums_native, strict=True):
        assert torch.equal(one.binades, other.binades)
        assert (one.subnormal is None) == (other.subnormal is None)
        assert one.subnormal is None or torch.equal(one.subnormal, other.subnormal)
    assert len(found.n) == sum(len(one.binades) for one in sums_native) > 250
    for field in fields(cells.Sums):
        one, other = getattr(expected, field.name), getattr(found, field.name)
        assert one.numpy().tobytes() == other.numpy().tobytes(), field.name
