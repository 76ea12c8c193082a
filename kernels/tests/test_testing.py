"""Checks of kernels: legal results pass, in any order of summation; planted bugs fail, and the message says why."""

import itertools

import custom_fp
import pytest
import torch
from custom_fp.testing import assert_matmul, assert_quantize
from custom_fp.testing.bounds import bounds
from custom_fp.testing.problem import read_problem

MACHINES = [
    *("h100_bf16", "h100_fp8", "a100_fp16_to_fp16", "deepseek_v3", "b200_mxfp8", "b200_nvfp4"),
    *("mi100_fp16", "mi250_bf16", "mi300_fp8"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def operands(machine, rows=16, depth=256, columns=16, spread=0, seed=0):
    """Values of the machine's formats."""
    g = generator(seed)
    formats = custom_fp.Accumulator.parse(machine).operands or ("fp16", "fp16")
    a, b = torch.randn(rows, depth, generator=g), torch.randn(depth, columns, generator=g)
    if spread:
        a, b = (x * 2.0 ** torch.randint(-spread, spread // 2, x.shape, generator=g) for x in (a, b))
    a, b = (custom_fp.quantize(x, f, axis=i) for x, f, i in zip((a, b), formats, (-1, -2), strict=True))
    return a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)


def product(a, b, machine="h100_bf16"):
    return custom_fp.matmul(a, b, accumulator=machine)


def error_of(got, *args, **kwargs):
    with pytest.raises(AssertionError) as caught:
        assert_matmul(got, *args, **kwargs)
    message = str(caught.value)
    assert len(message.splitlines()) <= 11
    return message


def is_inside(got, problem):
    every = tuple(torch.ones(problem.got.shape).nonzero().unbind(-1))
    return bounds(problem, *every).contains(got.expand(problem.got.shape)[every], problem).all()


# ---- legal results


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("spread", [0, 24])
def test_random_orders_are_inside_of_the_bound(machine, spread):
    g = generator(len(machine))
    a, b = operands(machine, spread=spread)
    problem = read_problem(torch.zeros(16, 16), a, b, machine, "any", None, None)
    for dtype in DTYPES:
        inner = [s for s in range(problem.unit, 256, problem.unit) if torch.rand(1, generator=g) < 0.4]
        cuts = [0, *inner, 256]
        sums = [problem.chain(*ends) for ends in itertools.pairwise(cuts)]
        while len(sums) > 1:
            last = sums.pop(int(torch.randint(len(sums), (1,), generator=g)))
            i = int(torch.randint(len(sums), (1,), generator=g))
            sums[i] = sums[i] + last
        total = sums[0]
        for factor in problem.factors:
            total = total * factor
        got = total[0].to(dtype)
        assert is_inside(got, read_problem(got, a, b, machine, "any", None, None))
        assert_matmul(got, a, b, machine)


@pytest.mark.parametrize(
    "name",
    ["e4m3", "bf16-fused", "e5m2-toward_zero", "e4m3fn-saturate", "e5m7-block_2-width_6", "lns4_3",
     "fp32-block_2-width_20-join_8_6"],
)  # fmt: skip
def test_orders_of_a_few_terms_are_inside_of_the_bound(name):
    """A third of the orders of 4 blocks, and all ways to divide them into chains that are added in float32."""
    how = custom_fp.Accumulator.parse(name)
    g = generator()
    a, b = (torch.randn(s, generator=g).bfloat16().float() for s in ((6, 4 * how.block), (4 * how.block, 6)))
    problem = read_problem(torch.zeros(6, 6), a, b, how, "any", None, None)
    for order in list(itertools.permutations(range(4)))[::3]:
        index = torch.tensor([k * how.block + i for k in order for i in range(how.block)])
        x, y = a[:, index], b[index]
        for cut in itertools.product((False, True), repeat=3):
            at = [0, *(i + 1 for i in range(3) if cut[i]), 4]
            parts = [slice(i * how.block, j * how.block) for i, j in itertools.pairwise(at)]
            total = sum(product(x[:, part], y[part], how) for part in parts)
            assert is_inside(total, problem), (order, cut)


def test_integers_have_one_result():
    g = generator()
    a, b = (torch.randint(-8, 9, shape, generator=g).float() for shape in ((8, 200), (200, 8)))
    problem = read_problem(torch.zeros(8, 8), a, b, "h100_bf16", "any", None, None)
    found = bounds(problem, *torch.ones(1, 8, 8).nonzero().unbind(-1))
    assert torch.equal(found.low, found.high) and torch.equal(found.low.view(8, 8), (a @ b).double())


def test_the_order_is_named():
    a, b = operands("h100_bf16")
    halves = product(a[:, :128], b[:128]) + product(a[:, 128:], b[128:])
    thirds = product(a[:, :80], b[:80]) + product(a[:, 80:160], b[80:160]) + product(a[:, 160:], b[160:])
    assert assert_matmul(product(a, b), a, b) == "one chain"
    assert assert_matmul(halves, a, b) == "K in 2 parts of 128 terms"
    assert assert_matmul(thirds, a, b) == "within the bound"
    assert assert_matmul(thirds, a, b, k_split=[80, 80, 96]) == "K in 3 parts of 80 terms, added in order"
    assert assert_matmul(halves, a, b, k_split=2)
    error_of(halves, a, b, k_split=1)
    error_of(product(a, b), a, b, k_split=2)


def test_parts_are_added_in_any_order():
    a, b = operands("h100_bf16", depth=64)
    p = [product(a[:, k : k + 16], b[k : k + 16]) for k in range(0, 64, 16)]
    for i, j, k, m in itertools.permutations(range(4)):
        assert_matmul((p[i] + p[j]) + (p[k] + p[m]), a, b, k_split=4)
        assert_matmul(((p[i] + p[j]) + p[k]) + p[m], a, b, k_split=4)


def test_batches_and_vectors_of_scales():
    a, b = operands("h100_fp8")
    batch = torch.stack([a, -a, 2 * a])
    g = generator(1)
    row, column = torch.rand(16, 1, generator=g), torch.rand(1, 16, generator=g) - 0.5
    got = product(batch, b, "h100_fp8") * row * column
    assert assert_matmul(got, batch, b, "h100_fp8", scale_a=row, scale_b=column) == "one chain"
    assert_matmul(product(a, b, "h100_fp8") * (row * column), a, b, "h100_fp8", scale_a=row, scale_b=column)
    assert "(2, 3, 5)" in error_of(
        got.index_put((torch.tensor(2), torch.tensor(3), torch.tensor(5)), torch.tensor(100.0)),
        *(batch, b, "h100_fp8"), scale_a=row, scale_b=column,
    )  # fmt: skip


def test_a_scale_for_each_group_of_terms():
    a, b = operands("h100_fp8")
    g = generator(1)
    s_a, s_b = torch.rand(16, 2, generator=g), torch.rand(2, 16, generator=g)
    parts = [product(a[:, k : k + 128], b[k : k + 128], "h100_fp8").double() for k in (0, 128)]
    exact = [p * s_a[:, i : i + 1].double() * s_b[i : i + 1].double() for i, p in enumerate(parts)]
    fused = exact[0].float() + exact[1]  # the second product and sum in one rounding
    assert_matmul(fused.float(), a, b, "h100_fp8", scale_a=s_a, scale_b=s_b)
    wrong = (exact[0] + parts[1] * s_a[:, :1] * s_b[:1]).bfloat16()
    assert "first block was used" in error_of(
        wrong, a, b, "h100_fp8", scale_a=s_a, scale_b=s_b.mul(0).add(s_b[0])
    )


def test_infinities_nan_and_overflow():
    a, b = operands("h100_fp16")
    a[3, 5], a[7, 9] = torch.inf, torch.nan
    got = product(a, b, "h100_fp16")
    assert_matmul(got, a, b, "h100_fp16")
    assert "NaN" in error_of(product(a.nan_to_num(0, 0, 0), b, "h100_fp16"), a, b, "h100_fp16")
    large = torch.full((4, 64), 60000.0)
    assert_matmul(product(large, large.T, "h100_fp16_to_fp16").half(), large, large.T, "h100_fp16_to_fp16")


# ---- bugs

A, B = operands("h100_bf16", 64, 256, 64)
FULL = product(A, B)
GOOD = FULL.bfloat16()


def tile_transposed():
    wrong = GOOD.clone()
    wrong[16:32, 32:48] = GOOD[16:32, 32:48].T
    return wrong


def row_missing():
    wrong = GOOD.clone()
    wrong[-1] = 0
    return wrong


BUGS = {
    "only the first 240 of 256": lambda: product(A[:, :-16], B[:-16]).bfloat16(),
    "only the first 255 of 256": lambda: product(A[:, :-1], B[:-1]).bfloat16(),
    "terms 64 to 127 is missing": lambda: (FULL - product(A[:, 64:128], B[64:128])).bfloat16(),
    "tile of 16 x 16 elements of the result": tile_transposed,
    "toward zero": lambda: custom_fp.quantize(FULL, "bf16", rounding="toward_zero").bfloat16(),
    "double rounding": lambda: FULL.half().bfloat16(),
    "rounded to bf16": lambda: GOOD.float(),
    "partial sums were rounded to bf16": lambda: product(A, B, "bf16-fused").bfloat16(),
    "2^1 times": lambda: (2 * FULL).bfloat16(),
    "1.1 times": lambda: (1.1 * FULL).bfloat16(),
    "row i +1": lambda: GOOD.roll(-1, 0),
    "the result is 0": row_missing,
    "the sign": lambda: -GOOD,
}


@pytest.mark.parametrize("words", BUGS)
def test_the_cause_is_named(words):
    message = error_of(BUGS[words](), A, B)
    assert words in message.split("Likely cause: ")[1], message


@pytest.mark.parametrize("machine", MACHINES)
def test_noise_has_no_known_cause(machine):
    a, b = operands(machine)
    got = torch.randn(16, 16, generator=generator(7)) * 20
    assert "Likely cause: unknown" in error_of(got, a, b, machine)


def test_small_scales_of_groups_do_not_widen_the_bound():
    a, b = operands("h100_fp8")
    small = torch.full((16, 2), 2.0**-20)
    every = torch.ones(1, 16, 16).nonzero().unbind(-1)
    width, wide = (
        found.high - found.low
        for s in (small, torch.ones(16, 2))
        for found in [bounds(read_problem(torch.zeros(16, 16), a, b, "h100_fp8", "any", s, s.T), *every)]
    )
    assert (width * 2.0**40 <= (1 + 2.0**-10) * wide).all()


def test_the_message():
    assert error_of(row_missing(), A, B).splitlines()[:5] == [
        "The matrix product is not a result of h100_bf16 in any order of summation!",
        "",
        "Mismatched elements: 64 / 4096 (1.6%), all in row 63",
        f"Worst element: 0 at index (63, {GOOD[-1].abs().argmax()}), off by "
        f"{GOOD[-1].abs().max().view(torch.int16)} units in the last place of bfloat16",
        f"Expected there: {GOOD[-1][GOOD[-1].abs().argmax()]:.9g}",
    ]


def test_flushed_subnormals():
    a, b = operands("h100_fp16", spread=14)
    a = a * 2.0**-8
    a = custom_fp.quantize(a, "fp16")
    got = product(torch.where(a.abs() < 2.0**-14, 0.0, a), b, "h100_fp16")
    assert "subnormal operands" in error_of(got, a, b, "h100_fp16")


def test_some_elements_are_checked():
    a, b = operands("h100_bf16", 200, 64, 300)
    got = product(a, b).bfloat16()
    assert assert_matmul(got, a, b, elements=500) == "one chain"
    got[-1, 3:] += 1
    message = error_of(got, a, b, elements=500)
    assert "of the sampled elements" in message and "row 199" in message
    assert message == error_of(got, a, b, elements=500)
    assert message != error_of(got, a, b, elements=500, seed=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"got": GOOD.double()},
            "got is a tensor of float64; it must be a tensor of one of the dtypes float32, bfloat16, float16",
        ),
        ({"got": GOOD[:5]}, r"got has shape \(5, 64\), but a @ b has shape \(64, 64\)"),
        ({"a": A + 1e-3}, "a has values that bf16, the input format of h100_bf16, does not represent"),
        ({"a": A[:, :5]}, "a has 5 columns but b has 256 rows"),
        ({"machine": "h100_bf61"}, "did you mean 'h100_bf16'"),
        ({"machine": 3}, "machine is 3; it must be a name"),
        ({"k_split": "some"}, "k_split is 'some'; it must be 'any', a number of equal parts, or a list"),
        ({"k_split": [100, 156]}, "must be a multiple of 16 terms"),
        ({"k_split": [128]}, "have 128 terms together, but a has 256"),
        ({"elements": 0}, "elements is 0"),
        ({"scale_a": torch.ones(3)}, "scale_a has shape"),
        ({"machine": "ue5m6-fused"}, "sums in the unsigned format ue5m6"),
    ],
)
def test_wrong_arguments(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        assert_matmul(**{"got": GOOD, "a": A, "b": B, **change})
    assert "\n" not in str(caught.value)


# ---- casts

X = torch.randn(4000, generator=generator()) * 2.0 ** torch.arange(4000).remainder(24).sub(12)
X[::2] = X[::2].bfloat16().float()  # with ties
Q = custom_fp.quantize
CASTS = {
    "ties were rounded away": lambda: Q(X, "e4m3fn", rounding="nearest_away"),
    "toward zero": lambda: Q(X, "e4m3fn", rounding="toward_zero"),
    "saturated instead": lambda: Q(X, "e4m3fn", overflow="saturate"),
    "flushed to +0": lambda: torch.where(Q(X, "e4m3fn").abs() < 2.0**-6, 0.0, Q(X, "e4m3fn")),
    "2^1 times": lambda: 2 * Q(X, "e4m3fn"),
    "not rounded": lambda: X,
    "rounded to bf16 first": lambda: Q(Q(X, "bf16"), "e4m3fn"),
}


@pytest.mark.parametrize("words", CASTS)
def test_the_cause_of_a_wrong_cast_is_named(words):
    assert_quantize(Q(X, "e4m3fn").to(torch.float8_e4m3fn), X, "e4m3fn")
    with pytest.raises(AssertionError) as caught:
        assert_quantize(CASTS[words](), X, "e4m3fn")
    assert words in str(caught.value).split("Likely cause: ")[1], caught.value


def test_casts_with_scales():
    x = X.view(40, 100)
    assert_quantize(Q(x, "mxfp8_e4m3", axis=-1), x, "mxfp8_e4m3", axis=-1)
    with pytest.raises(AssertionError, match="blocks run along dimension 0"):
        assert_quantize(Q(x, "mxfp8_e4m3", axis=0), x, "mxfp8_e4m3", axis=-1)
    with pytest.raises(AssertionError, match="the rule rceil"):
        assert_quantize(Q(x, "mxfp8_e4m3_rceil", axis=-1), x, "mxfp8_e4m3", axis=-1)


def test_stochastic_casts():
    assert_quantize(Q(X, "e4m3", rounding="stochastic", seed=3), X, "e4m3", rounding="stochastic")
    assert_quantize(Q(X, "e4m3", rounding="stochastic", seed=3), X, "e4m3", rounding="stochastic", seed=3)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_quantize(Q(X, "e4m2"), X, "e4m3", rounding="stochastic")
    with pytest.raises(ValueError, match="can be checked only with a seed"):
        assert_quantize(X, X, "mxfp4", rounding="stochastic")
