"""Compressors: known answers, message lengths, independent rows, unbiasedness and refusals."""

import math
from fractions import Fraction

import custom_fp
import pytest
import torch
from custom_fp.rounding import Rounding

from cpdrun.comm.compressors.bitpack import pack_codes, packed_bytes, unpack_codes
from cpdrun.comm.compressors.min_max import MinMax
from cpdrun.comm.compressors.qsgd import QSGD
from cpdrun.comm.compressors.random_k import RandomK
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.compressors.sign import Sign
from cpdrun.comm.compressors.top_k import TopK, largest
from cpdrun.comm.sums.sum import RandomStream

COMPRESSORS = {
    "fp32": Rounded("fp32", False, "nearest_even"),
    "e4m3": Rounded("e4m3", True, "nearest_even"),
    "e5m2 stochastic": Rounded("e5m2", False, "stochastic"),
    "e3m0": Rounded("e3m0", True, "stochastic"),
    "e3m2 to odd": Rounded("e3m2", True, "to_odd"),
    "mxfp8 stochastic": Rounded("mxfp8_e4m3", False, "stochastic"),
    "8 levels": MinMax(3, "stochastic"),
    "8 bits": MinMax(8, "nearest_even"),
    "top-k": TopK(0.1, "e4m3", True, "nearest_even"),
    "top-1": TopK(1e-9, "fp32", False, "nearest_even"),
    "random-k": RandomK(0.3, False, "e4m3", True, "stochastic"),
    "random-k unbiased": RandomK(0.3, True, "fp32", False, "nearest_even"),
    "qsgd 7": QSGD(7, contract=True),
    "qsgd 127": QSGD(127, contract=False),
    "sign": Sign(1),
}


def rows(W: int, n: int) -> tuple[torch.Tensor, list[tuple]]:
    x = torch.randn(W, n, generator=torch.Generator().manual_seed(n)) * 10.0 ** torch.arange(W)[:, None]
    return x, [("key", w) for w in range(W)]


@pytest.mark.parametrize("n", [1, 2, 7, 8, 130])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_messages_have_the_counted_length_and_rows_are_independent(name: str, n: int) -> None:
    c = COMPRESSORS[name]
    x, keys = rows(4, n)
    before = x.clone()
    data = c.compress(x, keys)
    assert torch.equal(x, before)
    assert data.shape == (4, c.message_bytes(n)) and data.dtype == torch.uint8
    received = c.decompress(data, n)
    assert received.shape == x.shape and received.dtype == torch.float32
    for w in range(4):
        alone = c.compress(x[w : w + 1], keys[w : w + 1])
        assert torch.equal(alone[0], data[w])
        assert torch.equal(c.decompress(alone, n)[0], received[w])
    assert not c.lossless or torch.equal(received, x)
    assert torch.equal(c.decompress(c.compress(torch.zeros(2, n), keys[:2]), n), torch.zeros(2, n))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_nonfinite_row_stays_visible_and_does_not_change_others(name: str) -> None:
    c, largest_float = COMPRESSORS[name], torch.finfo(torch.float32).max
    x, keys = rows(3, 40)
    clean = c.decompress(c.compress(x, keys), 40)
    for broken in (torch.nan, torch.inf, -torch.inf):
        x[1, 5], x[1, 3] = broken, largest_float
        received = c.decompress(c.compress(x, keys), 40)
        assert not torch.isfinite(received[1]).all()
        assert torch.equal(received[0], clean[0]) and torch.equal(received[2], clean[2])
        assert not torch.isfinite(c.decompress(c.compress(x[1:2, 5:6], keys[:1]), 1)).any()


@pytest.mark.parametrize("bits", range(1, 33))
def test_packed_codes_have_the_bit_order_of_custom_fp_and_round_trip(bits: int) -> None:
    for m in (1, 5, 8, 33):
        codes = torch.randint(0, 2**bits, (3, m), generator=torch.Generator().manual_seed(m))
        codes[0] = 2**bits - 1
        data = pack_codes(codes, bits)
        assert data.shape == (3, packed_bytes(m, bits)) == (3, math.ceil(m * bits / 8))
        assert torch.equal(unpack_codes(data, bits, m), codes)
        for row, packed in zip(codes.tolist(), data.tolist(), strict=True):
            # one large number, whose lowest digits are the first code
            number = sum(code << i * bits for i, code in enumerate(row))
            assert bytes(packed) == number.to_bytes(len(packed), "little")
    values = torch.tensor([0.5, -1.0, 3.5, 0.0, -0.25, 2.0, 1.5, -3.0])
    codes = custom_fp.encode(values, "e3m2").long()[None]
    assert torch.equal(pack_codes(codes, 6)[0], custom_fp.pack(values, "e3m2"))


def test_rounded_values_are_quantized_after_scaling_by_a_power_of_two() -> None:
    x, keys = rows(2, 100)
    x = x * 1e-6
    plain = COMPRESSORS["e4m3"]
    received = plain.decompress(plain.compress(x, keys), 100)
    for row, got in zip(x, received, strict=True):
        shift = 7 - math.ceil(math.log2(row.abs().max()))  # e4m3's emax is 7
        assert torch.equal(got, custom_fp.quantize(row * 2.0**shift, "e4m3") * 2.0**-shift)


@pytest.mark.parametrize("rounding", list(Rounding))
def test_every_rounding_of_custom_fp_is_supported(rounding: str) -> None:
    x, keys = rows(2, 100)
    for name in ("e4m3", "mxfp8_e4m3", "posit8"):
        c = Rounded(name, False, rounding)
        received = c.decompress(c.compress(x, keys), 100)
        for row, got, key in zip(x, received, keys, strict=True):
            assert torch.equal(
                got, custom_fp.quantize(row, name, rounding=rounding, seed=RandomStream(key).seed())
            )


def test_min_max_keeps_both_ends_and_errs_by_half_a_step() -> None:
    x, keys = rows(3, 500)
    for c, steps in ((MinMax(8, "nearest_even"), 0.5), (MinMax(4, "stochastic"), 1.0)):
        received = c.decompress(c.compress(x, keys), 500)
        step = (x.amax(1) - x.amin(1)) / (2**c.bits - 1)
        # low + code * step rounds twice, by at most 2^-24 of the largest value each
        slack = 2.0**-22 * x.abs().amax(1)
        assert ((received - x).abs().amax(1) <= steps * step + slack).all()
        assert torch.equal(received.amin(1), x.amin(1))
        torch.testing.assert_close(received.amax(1), x.amax(1), rtol=2.0**-22, atol=0)


def test_top_k_keeps_the_largest_and_the_first_of_equals() -> None:
    x = torch.tensor(
        [[1.0, -3.0, 3.0, 0.5, -3.0], [0.0, 0.0, 0.0, 0.0, 0.0], [2.0, torch.nan, 1.0, -5.0, 4.0]]
    )
    assert largest(x, 2).tolist() == [[1, 2], [0, 1], [1, 3]]
    c = TopK(0.4, "fp32", False, "nearest_even")
    assert c.decompress(c.compress(x[:1], [()]), 5).tolist() == [[0.0, -3.0, 3.0, 0.0, 0.0]]
    assert c.message_bytes(5) == 32 + 1  # 8 places of fp32 for two values; two indices of 3 bits
    large = TopK(0.01, "e4m3", True, "nearest_even")  # 2 bytes of scale, values of 8 bits and indices of 16
    assert large.kept(65536) == 656 and large.message_bytes(65536) == 2 + 656 * (1 + 2)


def test_largest_is_a_stable_sort_of_magnitudes_for_long_rows() -> None:
    """Rows that the upper halves of floats divide well, badly and not at all."""
    n, generator = 10000, torch.Generator().manual_seed(0)
    x = torch.randn(6, n, generator=generator)
    x[1], x[2], x[3, 7], x[4] = x[1].round(), 1 + x[2] * 2.0**-20, torch.nan, 0.0
    x[5] *= torch.rand(n, generator=generator) < 0.01
    for k in (1, 400, n // 2, n):
        order = x.abs().nan_to_num(nan=torch.inf).argsort(dim=1, descending=True, stable=True)
        assert torch.equal(largest(x, k), order[:, :k].sort(dim=1).values)


def test_min_max_of_a_range_beyond_float32_is_finite() -> None:
    x = torch.tensor([[-3e38, 3e38, 0.0, 1e38], [-1.0, 1.0, 0.0, 0.5]])
    c = MinMax(8, "nearest_even")
    received = c.decompress(c.compress(x, [(), ()]), 4)
    assert ((received - x).abs() <= torch.tensor([[0.5 * 6e38 / 255 * 1.001], [0.5 * 2 / 255 * 1.001]])).all()
    assert received[0, :2].tolist() == x[0, :2].tolist()


def test_random_k_sends_a_seed_and_values_of_random_places() -> None:
    c, n = RandomK(0.25, False, "fp32", False, "nearest_even"), 40
    x, keys = rows(2, n)
    received = c.decompress(c.compress(x, keys), n)
    assert c.message_bytes(n) == 8 + 4 * 16 and (received != 0).sum(1).tolist() == [10] * 2  # padded to 16
    assert torch.equal(received, torch.where(received != 0, x, 0.0))
    assert not torch.equal(received[0] != 0, received[1] != 0)
    drawn = sum((c.decompress(c.compress(x[:1], [(t,)]), n)[0] != 0).int() for t in range(400))
    assert drawn.min() > 60 and drawn.max() < 140  # 100 on average, with a deviation of 9


@pytest.mark.parametrize("name", ["e5m2 stochastic", "8 levels", "qsgd 127", "random-k unbiased"])
def test_stochastic_rounding_is_unbiased(name: str) -> None:
    """The mean of T draws is off by sigma / sqrt(T) on average; six sigma are allowed for the 20 values."""
    c, T = COMPRESSORS[name], 2000
    x = torch.randn(1, 20, generator=torch.Generator().manual_seed(1))
    draws = c.decompress(c.compress(x.expand(T, 20), [("draw", t) for t in range(T)]), 20)
    assert ((draws.mean(0) - x[0]).abs() <= 6 * draws.std(0) / math.sqrt(T) + 1e-6).all()
    assert draws.std(0).max() > 0


def test_qsgd_gives_levels_of_the_norm_and_its_variance_is_bounded() -> None:
    """Lemma 3.1 of the paper: E|Q(v) - v|^2 <= min(n / s^2, sqrt(n) / s) |v|^2; contracted, 1 - 1 / tau of |v|^2."""
    x, _ = rows(1, 64)
    for contract in (False, True):
        c = QSGD(3, contract)
        T = 1000
        draws = c.decompress(c.compress(x.expand(T, 64), [("draw", t) for t in range(T)]), 64)
        error = ((draws - x) ** 2).sum(1).mean() / (x**2).sum()
        assert error <= (1 - 1 / c.tau(64) if contract else c.tau(64) - 1) * 1.05
        levels = draws * (c.tau(64) if contract else 1) / x.norm() * 3
        torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-5)


def test_sign_sends_a_bit_per_value_and_the_mean_magnitude() -> None:
    c, inf, nan = Sign(1), math.inf, math.nan
    x = torch.tensor([[1.0, -3.0, 0.0, -0.0, 2.0, -0.5], [1e-45, 0, 0, 0, -1e-45, 0], [0, -0.0, 0, 0, 0, 0]])
    data = c.compress(x, [()] * 3)
    assert c.message_bytes(6) == 5 and data[0].tolist() == [*data[0, :4].tolist(), 0b100010]
    received = c.decompress(data, 6)
    s = float(torch.tensor(float(Fraction(13, 12)), dtype=torch.float32))
    assert received[0].tolist() == [s, -s, s, s, s, -s]
    assert (
        not received[1:].any() and not torch.signbit(received[1:]).any()
    )  # a third of the smallest subnormal
    huge = torch.tensor([[3e38, -3e38, 3e38], [inf, 1, 1], [-inf, inf, 1], [nan, 1, 1]])
    received = c.decompress(c.compress(huge, [()] * 4), 3)
    assert torch.equal(received[0], huge[0]) and received[1:].isnan().all()


def test_sign_has_the_error_of_its_paper() -> None:
    """arXiv 1901.09847, lemma 8: |C(x) - x|^2 = |x|^2 - |x|_1^2 / n, here exact but for the scale's one rounding."""
    x, keys = rows(3, 1000)
    lost = (Sign(1).decompress(Sign(1).compress(x, keys), 1000) - x).double().square().sum(1)
    expected = x.double().square().sum(1) - x.double().abs().sum(1) ** 2 / 1000
    torch.testing.assert_close(lost, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0, "fp32", False, "nearest_even"), "compressor.keep must be above 0"),
        (lambda: MinMax(0, "nearest_even"), "compressor.bits must be a whole number between 1 and 16"),
        (
            lambda: MinMax(8, "up"),
            "compressor.rounding must be one of nearest_even, stochastic, stochastic_1 to stochastic_31, not up",
        ),
        (lambda: QSGD(0, True), "compressor.levels must be a whole number between 1 and 32767"),
        (lambda: Sign(2), "compressor.bits must be 1, not 2"),
        (lambda: QSGD(2.5, True), "compressor.levels must be a whole number"),
        (lambda: Rounded("dynamic_tree", False, "to_odd"), "Set compressor.rounding=nearest_even"),
        (
            lambda: Rounded("e4m3", False, "up"),
            "compressor.rounding must be one of nearest_even, toward_zero, stoch",
        ),
        (lambda: Rounded("e9m9", False, "nearest_even"), "e9m9"),
    ],
)
def test_settings_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
