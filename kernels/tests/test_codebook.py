"""Codebooks: tables compared with their authors' and definitions, the nearest entry by rational arithmetic, and laws.

The 126 positive values of AUTHOR are the float32 data of source/8bit_floats.hdf5 in github.com/TimDettmers/clusterNet
(commit cb0bec5), which its kernels kCompression_8bit and kDecompression_8bit (arXiv 1511.04561) read: the last 504 of
its 2,648 bytes, printed with as many digits as distinguish float32 values. They were made with float32 arithmetic; ours
are the exact values, rounded once.

DIGESTS are sha256 of the float32 bytes of bitsandbytes 0.50.2's create_dynamic_map(signed), on an x86-64 processor. Its
quantize_4bit and quantize_blockwise were compared as well: of 65,536 normal values nf4 and fp4 in blocks of 64 gave the
same results, the dynamic map in blocks of 256 all but 95, which lie in the middle of two entries up to a rounding (it
multiplies by a rounded reciprocal).
"""

import hashlib
import math
from bisect import bisect
from fractions import Fraction
from itertools import pairwise

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import Codebook, parse
from scipy.stats import norm
from tensors import beside, normal, same_bits

TABLES = ["dynamic_tree", "linear", "static_tree", "mantissa"]
TERNARY = Codebook("ternary", (0.0, 1.0, -1.0), block=16)
ALL = [*map(parse, TABLES), parse("nf4"), TERNARY, Codebook("binary", (-1.0, 1.0))]
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
       1.0]  # fmt: skip
FP4 = [0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3]  # over 12
DIGESTS = {
    "dynamic_map": "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c",
    "dynamic_map_unsigned": "305f002cc11278fb769d13b25b9fd0c7c83c8402c40a878fe086f4039fde6398",
}
AUTHOR = """
2.75e-06 7.2499997e-06 1.875e-05 3.625e-05 5.8749996e-05 8.6249995e-05 1.4375e-04 2.3125e-04 3.1875e-04
4.0625e-04 5.1875e-04 6.5625e-04 7.9374993e-04 9.3124993e-04 0.00121875 0.00165625 0.00209375 0.00253125
0.00296875 0.00340625 0.00384375 0.00428125 0.00484375 0.00553125 0.0062187496 0.0069062496 0.0075937496
0.00828125 0.008968749 0.009656249 0.01109375 0.01328125 0.01546875 0.01765625 0.01984375 0.02203125
0.02421875 0.02640625 0.02859375 0.03078125 0.03296875 0.03515625 0.03734375 0.03953125 0.04171875
0.04390625 0.04671875 0.05015625 0.053593747 0.057031248 0.06046875 0.063906245 0.06734375 0.070781246
0.07421874 0.07765625 0.08109374 0.08453124 0.087968744 0.09140624 0.09484374 0.09828124 0.10546875
0.11640625 0.12734374 0.13828126 0.14921875 0.16015625 0.17109375 0.18203124 0.19296876 0.20390625
0.21484375 0.22578125 0.23671874 0.24765626 0.25859374 0.26953125 0.28046876 0.29140624 0.30234376
0.31328124 0.32421875 0.33515626 0.34609374 0.35703126 0.36796874 0.37890625 0.38984376 0.40078124
0.41171876 0.42265624 0.43359375 0.44453126 0.45859376 0.47578123 0.49296874 0.5101562 0.52734375
0.5445312 0.5617187 0.57890624 0.5960937 0.61328125 0.6304687 0.6476562 0.66484374 0.6820312 0.6992187
0.7164062 0.7335937 0.7507812 0.7679687 0.7851562 0.80234367 0.8195312 0.8367187 0.85390615 0.8710937
0.88828117 0.90546864 0.9226562 0.93984365 0.95703113 0.97421867 0.99140614
"""


# ---- tables


def test_published_digits():
    assert list(parse("nf4").element.values) == NF4
    assert torch.equal(torch.tensor(parse("fp4").element.values), torch.tensor(FP4) / 12)
    for name, digest in DIGESTS.items():
        assert hashlib.sha256(np.array(parse(name).element.values, "<f4").tobytes()).hexdigest() == digest


def test_definitions_of_nf4_and_the_dynamic_maps():
    """nf4: quantiles (arXiv 2305.14314), to the float32 in which bitsandbytes counts probabilities. The maps: middles
    of equal parts of each decade, to 2 units in the last place."""
    quantiles = [sign * norm.ppf(np.linspace(0.9677083, 0.5, n)[:-1]) for sign, n in ((1, 9), (-1, 8))]
    exact = np.sort([*quantiles[0], 0.0, *quantiles[1]]) / quantiles[0].max()
    assert np.abs(exact - parse("nf4").element.values).max() < 2e-7
    for name, parts in (("dynamic_map", 1), ("dynamic_map_unsigned", 2)):
        ends = [np.linspace(0.1, 1, parts * 2**i + 1) * 10.0 ** (i - 6) for i in range(7)]
        middles = [(low + high) / 2 for end in ends for low, high in pairwise(end)]
        signs = [1.0, -1.0] if parts == 1 else [1.0]
        expected = np.sort([*(sign * value for sign in signs for value in middles), 0.0, 1.0]).astype("f4")
        found = np.array(parse(name).element.values, "f4")
        assert np.abs(expected.view("i4") - found.view("i4")).max() <= 2 and len(set(found)) == 256
    squares = normal(500) ** 2
    assert (custom_fp.quantize(squares, "dynamic_map_unsigned_b256") >= 0).all()


def test_the_dynamic_tree_of_its_author():
    """To two units in the last place: what his additions and multiplications by .1 lost."""
    theirs = torch.tensor([float(digits) for digits in AUTHOR.split()])
    values = parse("dynamic_tree").element.values
    apart = (torch.tensor(values)[2:128].view(torch.int32) - theirs.view(torch.int32)).abs()
    assert len(theirs) == 126 and apart.max() <= 2 and (apart == 0).sum() == 82
    # clusterNet's kernel: above .995703 of the largest magnitude the code is the maximum's
    x = torch.tensor([1.0, 0.9957031, 0.9957033])
    assert custom_fp.quantize(x, "dynamic_tree").tolist() == pytest.approx([1.0, 0.99140625, 1.0], abs=1e-7)
    dynamic = torch.tensor(parse("dynamic_map").element.values)
    apart = (dynamic[:, None] - torch.tensor(values)).abs().amin(1)
    assert (apart > 1e-6 * dynamic.abs()).sum() == 226, "bitsandbytes' map is another table"


def test_known_answers_of_the_dynamic_tree():
    """Code by code, worked out by hand: sign, leading zeros, place in the decade."""
    known = {
        0b0_0000000: 0.0,
        0b0_0000001: 1.0,
        0b1_0000001: -1.0,
        0b0_0000010: 0.275e-5,  # 5 leading zeros: the middle of [.1, .45]
        0b0_0000011: 0.725e-5,  # the middle of [.45, 1]
        0b0_0000100: 0.1875e-4,  # 4: two parts of [.1, .45]
        0b0_0000111: 0.8625e-4,
        0b0_0100000: (0.1 + 0.35 / 32) * 1e-1,  # 1: 16 parts of [.1, .45]
        0b0_0111111: (1.0 - 0.55 / 32) * 1e-1,
        0b0_1000000: 0.1 + 0.35 / 64,
        0b0_1011111: 0.45 - 0.35 / 64,
        0b0_1100000: 0.45 + 0.55 / 64,
        0b0_1111111: 0.99140625,
        0b1_1111111: -0.99140625,
    }
    values = parse("dynamic_tree").element.values
    assert [values[code] for code in known] == torch.tensor(list(known.values())).tolist()
    decades = [sum(10.0**-z * 0.1 < value < 10.0**-z for value in values) for z in range(6)]
    assert decades == [64, 32, 16, 8, 4, 2]
    assert len(set(values)) == 255  # two codes are zero


def test_the_other_tables():
    linear, static, mantissa = (parse(name).element.values for name in TABLES[1:])
    assert [round(127 * v) for v in linear] == [*range(128), 0, *(-k for k in range(1, 128))]
    assert static[0] == pytest.approx(0.1 + 0.9 / 32) and static[15] == pytest.approx(1 - 0.9 / 32)
    assert static[16] == pytest.approx(0.01 + 0.09 / 32) and {0.0, 1.0, -1.0} <= set(static)
    assert mantissa[3] == pytest.approx(0.3) and mantissa[2 * 16 + 12] == pytest.approx(0.012)
    assert max(mantissa) == 1.0 and len(set(mantissa)) == 217


# ---- rounding and codes


def nearest(y: float, ascending: list[float]) -> float:
    """Return the entry with the least distance, then the least magnitude, then the positive one; exact."""
    i = bisect(ascending, y)
    neighbors = ascending[max(0, i - 2) : i + 2]
    return min(neighbors, key=lambda v: (abs(Fraction(v) - Fraction(y)), abs(v), -v))


@pytest.mark.parametrize("book", ALL, ids=str)
def test_every_middle_and_its_neighbors_become_the_nearest_entry(book):
    distinct = sorted(set(book.element.values))
    points = torch.tensor([*distinct, *((a + b) / 2 for a, b in pairwise(distinct))])
    others = torch.cat([torch.linspace(-1, 1, 501), torch.tensor([1.0, 0.0, -0.0, 2.0**-149])])
    y = torch.cat([beside(points).clamp(-1, 1), others])
    ours = custom_fp.quantize(y, Codebook(book.name, book.element.values))  # one scale for all, which is 1
    for value, result in zip(y.tolist(), ours.tolist(), strict=True):
        assert result == nearest(value, distinct), value


@pytest.mark.parametrize("n", [2, 3, 5, 9, 17, 33, 65, 129, 256])
def test_codes_of_every_number_of_bits_are_packed_densely(n):
    book, x = Codebook("steps", tuple(i / n for i in range(n))), normal(83, seed=n).abs()
    k = book.code_bits
    assert k == math.ceil(math.log2(n))
    data = custom_fp.pack(x, book)[4:]
    number = int.from_bytes(bytes(data.tolist()), "little")
    codes = [number >> (j * k) & (2**k - 1) for j in range(83)]
    assert codes == custom_fp.encode(x, book)[0].tolist() and data.numel() == 11 * k
    assert same_bits(custom_fp.unpack(custom_fp.pack(x, book), book, (83,)), custom_fp.quantize(x, book))


@pytest.mark.parametrize("name", ["linear_b64", "nf4_b64", "linear"])
@pytest.mark.parametrize("n", [64, 1000, 4096])
def test_float64_is_packed_like_the_float32_that_it_rounds_to(name, n):
    """The float32 copy has to live until it is packed: malloc writes to the first bytes of freed memory."""
    x = normal(n, seed=n)
    assert torch.equal(custom_fp.pack(x.double(), name), custom_fp.pack(x, name))


def test_blocks_have_scales_of_their_own():
    x = normal(150) * torch.logspace(-6, 3, 150)
    blocks = [custom_fp.quantize(part, "dynamic_tree") for part in x.split(64)]
    assert same_bits(custom_fp.quantize(x, "dynamic_tree_b64"), torch.cat(blocks))
    assert custom_fp.encode(x, "dynamic_tree_b64")[1].tolist() == [part.abs().max() for part in x.split(64)]


def test_the_largest_magnitude_comes_back_exactly_and_twice_is_once():
    x = normal(999, seed=2) * 1e-12
    for name in TABLES:
        rounded = custom_fp.quantize(x, name)
        assert rounded.abs().max() == x.abs().max()
        assert same_bits(custom_fp.quantize(rounded, name), rounded)
        assert same_bits(custom_fp.quantize(-x, name), -rounded + 0.0)


def test_special_values():
    zeros = custom_fp.quantize(torch.tensor([0.0, -0.0, 0.0]), "dynamic_tree")
    assert same_bits(zeros, torch.zeros(3))  # -0 becomes +0
    tiny = torch.tensor([1e-45, -1e-45, 0.0])
    assert same_bits(custom_fp.quantize(tiny, "linear"), tiny)
    huge = torch.tensor([3.4028235e38, -1.7e38])
    assert custom_fp.quantize(huge, "linear")[0] == huge[0]
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.tensor([1.0, 2.0, 3.0, bad, 5.0])
        assert custom_fp.quantize(x, "dynamic_tree").isnan().all()
        assert custom_fp.unpack(custom_fp.pack(x, "linear"), "linear", (5,)).isnan().all()
        in_blocks = custom_fp.quantize(x, Codebook("pairs", (0.0, 0.5, 1.0), block=2))
        assert in_blocks.isnan().tolist() == [False, False, True, True, False]


def test_inputs_of_other_types_and_strides_are_rounded_and_never_written():
    x, out = normal(8, 6, seed=3), torch.empty(6, 8)
    before, expected = x.clone(), custom_fp.quantize(x.t().contiguous(), "linear")
    assert same_bits(custom_fp.quantize(x.t(), "linear"), expected)
    assert custom_fp.quantize(x.t(), "linear", out=out) is out and same_bits(out, expected)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        y = x.to(dtype)
        assert same_bits(custom_fp.quantize(y, "linear"), custom_fp.quantize(y.float(), "linear"))
    assert same_bits(x, before)
