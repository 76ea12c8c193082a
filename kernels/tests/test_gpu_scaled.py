"""Hadamard transforms, codebooks and affine integers on a GPU against the CPU, bit for bit.

pytest -m gpu kernels/tests
"""

import math

import custom_fp
import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def equal_bits(on_gpu, on_cpu):
    return torch.equal(on_gpu.cpu().view(torch.uint8), on_cpu.view(torch.uint8))


@pytest.fixture(scope="module")
def tensors():
    g = torch.Generator().manual_seed(0)
    hostile = torch.randn(3, 190, 1000, generator=g) * torch.logspace(-30, 10, 1000)
    hostile[0, 3, 5], hostile[2, 7, 900], hostile[1, 100] = math.nan, -math.inf, 0.0
    return hostile, torch.randn(257, 130, generator=g), torch.randn(5, generator=g), torch.empty(0, 3)


@pytest.mark.parametrize("size", [1, 2, 16, 128, 4096, 8192])
def test_hadamard(size, tensors):
    for x in (*tensors, torch.randn(9000)):
        for axis in range(x.dim()):
            for seed, inverse in ((None, False), (2**63 + 1, False), (-7, True)):
                how = {"size": size, "seed": seed, "inverse": inverse, "axis": axis}
                assert equal_bits(custom_fp.hadamard(x.cuda(), **how), custom_fp.hadamard(x, **how)), how


@pytest.mark.parametrize(
    "name",
    [
        *("dynamic_tree", "linear_b64", "nf4_b64", "fp4", "dynamic_map_b256", "dynamic_map_unsigned_b7"),
        *("int8_affine", "int4_affine_b32", "int8_affine_channel", "int5_affine_column", "int2_affine_8x16"),
    ],
)
def test_formats_with_scales(name, tensors):
    for x in tensors[:2]:
        for axis in (None, *range(x.dim())):
            expected, there = custom_fp.encode(x, name, axis=axis), x.cuda()
            assert equal_bits(
                custom_fp.quantize(there, name, axis=axis), custom_fp.quantize(x, name, axis=axis)
            )
            assert all(map(equal_bits, custom_fp.encode(there, name, axis=axis), expected))
            data = custom_fp.pack(x, name, axis=axis)
            assert equal_bits(custom_fp.pack(there, name, axis=axis), data)
            got = custom_fp.unpack(data.cuda(), name, x.shape, axis=axis)
            assert equal_bits(got, custom_fp.unpack(data, name, x.shape, axis=axis))
