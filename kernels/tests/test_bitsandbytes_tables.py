"""bitsandbytes' tables: its published digits, the sum of its own bytes, its definitions in torch and scipy; and blocks
along an axis.

DIGESTS are sha256 of the float32 bytes of bitsandbytes 0.50.2's create_dynamic_map(signed), on an x86-64 processor.
Its quantize_4bit and quantize_blockwise were compared as well: of 65,536 normal values nf4 and fp4 in blocks of 64 gave
the same results, the dynamic map in blocks of 256 all but 95, which lie in the middle of two entries to a rounding (it
multiplies by a rounded reciprocal).
"""

import hashlib
import math
from itertools import pairwise

import custom_fp
import numpy as np
import pytest
import torch
from custom_fp import _native
from custom_fp.formats.names import parse
from scipy.stats import norm

NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
       1.0]  # fmt: skip
FP4 = [0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3]  # over 12
DENSE = tuple(0.5 + i * 2.0**-20 for i in range(200))
DIGESTS = {
    "dynamic_map": "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c",
    "dynamic_map_unsigned": "305f002cc11278fb769d13b25b9fd0c7c83c8402c40a878fe086f4039fde6398",
}


def test_the_published_digits():
    assert list(parse("nf4").element.values) == NF4
    assert torch.equal(torch.tensor(parse("fp4").element.values), torch.tensor(FP4) / 12)


@pytest.mark.parametrize("name", DIGESTS)
def test_the_bytes_of_the_dynamic_maps(name):
    assert hashlib.sha256(np.array(parse(name).element.values, "<f4").tobytes()).hexdigest() == DIGESTS[name]


def test_what_the_papers_define():
    """nf4: quantiles (arXiv 2305.14314), to the float32 in which bitsandbytes counts probabilities. The maps: middles
    of equal parts of each decade, to 2 units in the last place."""
    offset = 0.9677083
    positive, negative = (
        norm.ppf(np.linspace(offset, 0.5, 9)[:-1]),
        -norm.ppf(np.linspace(offset, 0.5, 8)[:-1]),
    )
    exact = np.sort([*positive, 0.0, *negative]) / positive.max()
    assert np.abs(exact - parse("nf4").element.values).max() < 2e-7
    for name, parts in (("dynamic_map", 1), ("dynamic_map_unsigned", 2)):
        ends = [np.linspace(0.1, 1, parts * 2**i + 1) * 10.0 ** (i - 6) for i in range(7)]
        middles = [(low + high) / 2 for end in ends for low, high in pairwise(end)]
        signs = [1.0, -1.0] if parts == 1 else [1.0]
        expected = np.sort([*(sign * value for sign in signs for value in middles), 0.0, 1.0]).astype("f4")
        found = np.array(parse(name).element.values, "f4")
        assert np.abs(expected.view("i4") - found.view("i4")).max() <= 2 and len(set(found)) == 256


def test_226_entries_of_the_map_are_none_of_the_tree():
    tree, dynamic = (torch.tensor(parse(name).element.values) for name in ("dynamic_tree", "dynamic_map"))
    apart = (dynamic[:, None] - tree).abs().amin(1)
    assert (apart > 1e-6 * dynamic.abs()).sum() == 226


def test_names_and_bits():
    nf4 = parse("nf4_b64")
    assert (nf4.block, nf4.bits, str(nf4)) == (64, 4.5, "nf4_b64")
    assert parse("fp4").code_bits == 4 and parse("dynamic_map").code_bits == 8
    assert not parse("dynamic_map_unsigned").is_signed and parse("dynamic_map").is_signed
    squares = torch.rand(500, generator=torch.Generator().manual_seed(0)) ** 2
    assert (custom_fp.quantize(squares, "dynamic_map_unsigned_b256") >= 0).all()


@pytest.mark.parametrize(
    "book", ["nf4_b64", "dynamic_map_b16", "fp4", custom_fp.Codebook("dense", DENSE, 5)], ids=str
)
def test_blocks_along_an_axis(book):
    """Each row by itself, on every instruction set; NaN, inf, zeros and the smallest subnormals among them."""
    book = parse(book)
    x = torch.randn(3, 70, 301, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 301)
    x[0, :, 5], x[1, 3, 9], x[2, 6, 17], x[1, :, 11] = 0.0, math.nan, -math.inf, 1e-45
    rows = x.movedim(1, -1).reshape(-1, 70)
    each = custom_fp.quantize_rows(rows, book).view(3, 301, 70).movedim(-1, 1)
    if book.block == "tensor":
        each = custom_fp.quantize(x, book)
    for isa in _native.isas():
        _native.use_isa(isa)
        for source, axis in ((x, 1), (x.transpose(0, 1).contiguous(), 0), (x.mT.contiguous(), 2)):
            found = custom_fp.quantize(source, book, axis=axis)
            expected = each if source is x else each.transpose(0, 1) if axis == 0 else each.mT
            expected = expected.contiguous().view(torch.int32)
            assert torch.equal(found.view(torch.int32), expected), (isa, axis)
            codes = custom_fp.encode(source, book, axis=axis)
            assert codes[1].shape == book.layout(source.shape, axis).shape
            assert torch.equal(custom_fp.decode(codes, book, axis=axis).view(torch.int32), expected), (
                isa,
                axis,
            )
