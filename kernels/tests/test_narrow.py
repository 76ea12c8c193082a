"""Sums, products and powers of two in float32 (csrc/narrow.h) are the exact numbers rounded to odd, which doubles give:
what CUDA kernels round then. A double holds a product of two float32, and rounds a sum of two to odd."""

from ctypes import CDLL, c_int, c_longlong, c_void_p

import pytest
import torch
from kernels_on_host import compiled_library


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    library = CDLL(str(compiled_library("narrow_on_host.cpp", tmp_path_factory.mktemp("narrow"), "-O2")))
    library.wrong_powers.restype = library.wrong_pairs.restype = c_longlong
    return library


@pytest.mark.parametrize("shift", [*range(-8, 9), 126, 127, 128, 253, 276, 277, 278, 400, -125, -126, -127])
def test_powers_of_two(narrow, shift):
    """Both signs, every exponent, 8,000 mantissas of each."""
    for of in {shift, -shift, shift - 23, -shift - 149}:
        assert narrow.wrong_powers(c_int(max(-400, min(400, of))), c_longlong(1021)) == 0, of


def test_sums_and_products(narrow):
    """Of random bits; and of every exponent with every other, mantissas that make ties, carries and small errors."""
    g = torch.Generator().manual_seed(6)
    a, b = torch.randint(-(2**31), 2**31, (2, 1 << 20), generator=g).to(torch.int32).view(torch.float32)
    exponents = torch.arange(256, dtype=torch.int32)
    last = 0x7FFFFF
    for first, second in ((0, 0), (1, 0), (last, 1), (last, last), (0x400000, 0x3FFFFF), (0x123456, 7)):
        for sign in (0, -(2**31)):
            left, right = (exponents << 23) + first, (exponents << 23) + second
            pairs = torch.cartesian_prod(left, right + sign).view(torch.float32)
            a, b = torch.cat([a, pairs[:, 0]]), torch.cat([b, pairs[:, 1]])
    near = (a.view(torch.int32) ^ torch.randint(2**26, (len(a),), generator=g).to(torch.int32)).view(
        torch.float32
    )
    for x, y in ((a, b), (b, a), (a, near), (a, -near)):
        x, y = x.contiguous(), y.contiguous()
        assert narrow.wrong_pairs(c_void_p(x.data_ptr()), c_void_p(y.data_ptr()), c_longlong(len(x))) == 0
