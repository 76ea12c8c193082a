"""emulate_all_reduce against exact rational arithmetic, the definitions of its orders, odd layers and refusals."""

import math
from fractions import Fraction

import pytest
import torch
from bits import same_bits
from custom_fp import Format
from exact_sums import aps_shift, rounded, summed

from cpdrun.comm import emulate_all_reduce

FORMATS = ["e2m1", "e3m0", "e4m1", "e4m3", "e5m2", "e4m3fn", "e2m1fn", "e3m6", "e8m7"]


def gradients(n: int, scale: float, seed: int = 0) -> torch.Tensor:
    """(n, 40) float32 values over nine binades."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-6, 3, (n, 40), generator=generator)
    return torch.ldexp(torch.randn(n, 40, generator=generator), exponents) * scale


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kahan", [False, True])
@pytest.mark.parametrize(
    ("aps", "scale"), [(True, 1.0), (True, 1e-4), (True, 2.0**-140), (True, 2.0**120), (False, 2.0**-6)]
)
def test_rank_order_equals_rational_arithmetic(fmt: str, kahan: bool, aps: bool, scale: float) -> None:
    for n in (1, 2, 3, 4):
        grads = gradients(n, scale, seed=n)
        ours = emulate_all_reduce(list(grads), fmt, aps=aps, kahan=kahan).tolist()
        exact = [[Fraction(value) for value in row] for row in grads.tolist()]
        every = [value for row in exact for value in row]
        shift = aps_shift(every, n, Format.parse(fmt)) if aps else 0
        expected = [
            summed(list(column), Format.parse(fmt), shift, kahan) for column in zip(*exact, strict=True)
        ]
        assert ours == [float(value) for value in expected], n


def test_ring_adds_each_chunk_in_a_different_order() -> None:
    # 3 workers, 40 values: chunks of 16, 16 and 8; chunk c is added in the order c+1, c+2, c
    grads = gradients(3, 1.0)
    ours = emulate_all_reduce(list(grads), "e4m1", aps=True, order="ring")
    parts = []
    for c, columns in enumerate(grads.split([16, 16, 8], dim=1)):
        # the other columns give every part the shift of the whole layer
        row = [torch.cat([columns[(c + 1 + i) % 3], grads[(c + 1 + i) % 3]]) for i in range(3)]
        parts.append(emulate_all_reduce(row, "e4m1", aps=True)[: columns.shape[1]])
    assert same_bits(ours, torch.cat(parts))
    assert not same_bits(ours, emulate_all_reduce(list(grads), "e4m1", aps=True))


# Groups of the same size are added in one call. Groups of different sizes are added one after the other.
@pytest.mark.parametrize(
    ("groups", "options"),
    [([(0, 2), (2, 4), (4, 6)], {"group_size": 2}), ([(0, 4), (4, 8), (8, 11)], {})],  # 11: automatic
)
@pytest.mark.parametrize("fmt", ["fp32", "e4m1", "e5m2", "posit8"])
@pytest.mark.parametrize("sum_options", [{"aps": True}, {"aps": True, "kahan": True}, {"aps": False}])
@pytest.mark.parametrize("scale", [1e-3, 2.0**-140, 2.0**120])
def test_hierarchical_is_the_sum_of_the_sums_of_groups(groups, options, fmt, sum_options, scale) -> None:
    grads = gradients(groups[-1][1], scale)
    grads *= torch.arange(1, len(grads) + 1)[:, None] ** 3  # so that groups have different shifts
    grads[1, 0], grads[2, 1], grads[0, 2:4] = math.nan, math.inf, torch.tensor([0.0, -0.0])
    sums = [emulate_all_reduce(list(grads[a:b]), fmt, **sum_options) for a, b in groups]
    ours = emulate_all_reduce(list(grads), fmt, order="hierarchical", **options, **sum_options)
    assert same_bits(ours, emulate_all_reduce(sums, fmt, **sum_options))


def test_the_sum_of_groups_differs_from_one_chain() -> None:
    grads = list(gradients(6, 1e-3))
    ours = emulate_all_reduce(grads, "e4m1", aps=True, order="hierarchical", group_size=2)
    assert not same_bits(ours, emulate_all_reduce(grads, "e4m1", aps=True))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("aps", [False, True])
def test_exact_rounds_the_rational_sum_of_the_sent_values_once(fmt: str, aps: bool) -> None:
    parsed = Format.parse(fmt)
    for n in (1, 2, 9):
        grads = gradients(n, 2.0**-6, seed=n)
        exact = [[Fraction(value) for value in row] for row in grads.tolist()]
        shift = aps_shift([value for row in exact for value in row], n, parsed) if aps else 0
        sent = [[rounded(g * Fraction(2) ** shift, parsed) for g in row] for row in exact]
        expected = [
            float(rounded(sum(column), parsed) / Fraction(2) ** shift) for column in zip(*sent, strict=True)
        ]
        for order in ("exact", "aligned_40"):
            assert emulate_all_reduce(list(grads), fmt, aps=aps, order=order).tolist() == expected, (n, order)


@pytest.mark.parametrize("n", [3, 4, 7, 11])
@pytest.mark.parametrize("kahan", [False, True])
def test_tree_adds_pairs_of_pairs(n: int, kahan: bool) -> None:
    options = {"aps": True, "kahan": kahan}
    grads = list(gradients(n, 1e-3, seed=n))
    pairs = [grads[first : first + 2] for first in range(0, n, 2)]
    # the last worker of an odd number is rounded, too, because its gradient is sent
    sums = [emulate_all_reduce(pair, "e4m1", **options) for pair in pairs]
    while len(sums) > 1:
        pairs = [sums[first : first + 2] for first in range(0, len(sums), 2)]
        sums = [emulate_all_reduce(p, "e4m1", **options) if len(p) == 2 else p[0] for p in pairs]
    ours = emulate_all_reduce(grads, "e4m1", order="tree", **options)
    assert same_bits(ours, sums[0])
    assert n == 3 or not same_bits(ours, emulate_all_reduce(grads, "e4m1", **options))


@pytest.mark.parametrize("n", [1, 2, 7, 8])
@pytest.mark.parametrize(("kahan", "rounding"), [(False, "stochastic"), (True, "nearest_even")])
def test_one_automatic_group_is_the_flat_chain(n: int, kahan: bool, rounding: str) -> None:
    options = {"aps": True, "kahan": kahan, "rounding": rounding, "seed": 3}
    grads = list(gradients(n, 1e-3))
    flat = emulate_all_reduce(grads, "e3m0", order="rank", **options)
    assert same_bits(emulate_all_reduce(grads, "e3m0", order="hierarchical", **options), flat)
    assert same_bits(emulate_all_reduce(grads, "e3m0", order="hierarchical", group_size=n, **options), flat)


def test_shorter_chains_lose_less_at_few_bits() -> None:
    """64 ones in e3m0. One chain leaves room for 64 summands, and each underflows; without, it stops at 4."""
    sums = {
        (order, aps): emulate_all_reduce([torch.ones(1)] * 64, "e3m0", aps=aps, order=order).item()
        for order in ("rank", "hierarchical", "tree")
        for aps in (False, True)
    }
    assert (sums["rank", True], sums["rank", False]) == (0.0, 4.0)
    assert (sums["hierarchical", True], sums["tree", True]) == (16.0, 64.0)


@pytest.mark.parametrize("fmt", [*FORMATS, "fp32"])
@pytest.mark.parametrize("order", ["rank", "ring", "hierarchical", "tree"])
@pytest.mark.parametrize("exponent", [-140, 120])
def test_tiny_and_huge_layers_are_summed_like_ordinary_ones(fmt: str, order: str, exponent: int) -> None:
    # multiples of 1/16 up to 1: 2^-140 times that are subnormal, and exact
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randint(-16, 17, (40,), generator=generator) / 16 for _ in range(4)]
    for kahan in (False, True):
        how = {"aps": True, "kahan": kahan, **grouped(order)}
        result = emulate_all_reduce([g * 2.0**exponent for g in grads], fmt, **how)
        assert same_bits(result, emulate_all_reduce(grads, fmt, **how) * 2.0**exponent)


@pytest.mark.parametrize("fmt", [*FORMATS, "fp32"])
@pytest.mark.parametrize("order", ["rank", "ring", "hierarchical", "tree"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite_elements_stay_visible_and_leave_others_alone(fmt: str, order: str, value: float) -> None:
    parsed, grads, others = Format.parse(fmt), gradients(4, 1e-3), torch.arange(40) != 5
    grads[:, 5] = 0.0
    for kahan in (False, True):
        how = {"aps": True, "kahan": kahan, **grouped(order)}
        clean = emulate_all_reduce(list(grads), fmt, **how)
        broken = grads.clone()
        broken[2, 5] = value
        result = emulate_all_reduce(list(broken), fmt, **how)
        if parsed.has_inf or parsed.has_nan or order not in ("hierarchical", "tree"):
            assert same_bits(result[others], clean[others])
        if parsed.has_inf and not math.isnan(value):
            assert result[5] == value
        elif parsed.has_inf or parsed.has_nan:
            assert not torch.isfinite(result[5])
        else:  # the format has neither: its largest value, which the next level takes for finite
            assert result[5].abs() >= clean.abs().max()


def grouped(order: str) -> dict[str, object]:
    return {"order": order, **({"group_size": 2} if order == "hierarchical" else {})}


def test_saturating_sums_stop_at_the_largest_value() -> None:
    grads = [torch.tensor([3.0, -3.0, 0.5]) for _ in range(4)]
    assert emulate_all_reduce(grads, "e2m1", overflow="saturate").tolist() == [3.0, -3.0, 2.0]
    assert emulate_all_reduce(grads, "e2m1").tolist() == [math.inf, -math.inf, 2.0]


def test_stochastic_rounding_is_unbiased_and_repeats_with_its_seed() -> None:
    grads = [torch.full((200_000,), 0.3)] * 2
    first = emulate_all_reduce(grads, "e3m0", rounding="stochastic", seed=1)
    assert same_bits(first, emulate_all_reduce(grads, "e3m0", rounding="stochastic", seed=1))
    assert not same_bits(first, emulate_all_reduce(grads, "e3m0", rounding="stochastic", seed=2))
    # q is 0.25 or 0.5, the sum 0.5, 0.75 (rounded to 0.5 or 1) or 1: standard deviation 0.2, 5 sigma of the mean
    assert abs(first.mean().item() - 0.6) < 5 * 0.2 / math.sqrt(200_000)


def test_inputs_are_not_written_and_shapes_are_kept() -> None:
    grads = [torch.randn(3, 4, 5).transpose(0, 2) for _ in range(3)]
    before = [g.clone() for g in grads]
    result = emulate_all_reduce(grads, "e4m3", aps=True)
    assert result.shape == (5, 4, 3) and result.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(grads, before, strict=True))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"order": "banana"}, "hierarchical, native, rank, ring, tree"),
        ({"rounding": "up"}, "nearest_even"),
        ({"overflow": "wrap"}, "saturate"),
        ({"order": "hierarchical", "group_size": None}, "group_size=null: .* must be auto"),
        ({"order": "hierarchical", "group_size": "half"}, "group_size=half: .* must be auto"),
        ({"order": "hierarchical", "group_size": 0}, "group_size=0"),
        ({"order": "hierarchical", "group_size": 3}, "does not divide"),
        ({"group_size": 2}, "hierarchical"),
        ({"order": "native"}, "fp32"),
        ({"kahan": "yes"}, "kahan='yes': choose one of False, True"),
        (
            {"order": "ring", "requantise": "once"},
            "requantise=once adds in float32, so the order must be rank",
        ),
        ({"error_feedback": True}, "Use ddp_hook or AllReduceSync"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        emulate_all_reduce([torch.ones(3)] * 4, "e4m3", **options)


@pytest.mark.parametrize(
    ("tensors", "kind", "says"),
    [
        ([], ValueError, "at least one tensor"),
        ([torch.ones(3), torch.ones(4)], ValueError, "tensors of one shape"),
        ([torch.arange(3)] * 2, TypeError, "int64"),
    ],
)
def test_tensors_that_cannot_be_summed_are_refused(tensors: list, kind: type, says: str) -> None:
    with pytest.raises(kind, match=says):
        emulate_all_reduce(tensors, "e4m3")
