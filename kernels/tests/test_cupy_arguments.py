"""CuPy accepts the arguments of every kernel that the public operators launch. No GPU is needed (cupy_launches.py)."""

import shutil
from pathlib import Path

import custom_fp
import numpy as np
import pytest
import torch

pytest.importorskip("cupy", reason="CuPy converts the arguments; pip install cupy-cuda13x")
import test_backends
from backend_choice import in_cuda
from cupy_launches import check_cupy_accepts, check_types, prototypes, replaced_driver
from custom_fp import cuda, nvrtc

ROUNDINGS = ("nearest_even", "toward_zero", "stochastic", "nearest_away")  # kernels for the last: "otherwise"
NEAREST = ("nf4_b64", "dynamic_tree", "int4_affine_b32", "int8_affine")  # codebooks and affine integers
X = torch.randn(1 << 8, 1 << 7, generator=torch.Generator().manual_seed(0))  # large: blocks of a whole tensor


def elementwise():
    for name in ("e5m2", "ue5m6", "fp16", "fp32", "posit8", "takum16"):
        list(test_backends.elementwise(name))
    list(test_backends.without_format(""))


def sums():
    for name in ("e5m2", "ue5m6", "posit8"):
        list(test_backends.sums(name))
    terms = list(torch.randn(cuda.FEW + 1, 24))  # more tensors than arguments
    custom_fp.accumulate(terms, "e4m3", kahan=True)
    for rounding in ROUNDINGS:
        custom_fp.accumulate_packed(
            [custom_fp.pack(term, "e4m3") for term in terms], "e4m3", 24, rounding=rounding
        )


def products():
    a, b = torch.randn(2, 5, 32), torch.randn(2, 32, 3)
    for name in ("fp16", "posit8", "h100_fp16", "fp32-fused", *(f"fp16-{word}" for word in ROUNDINGS[1:])):
        custom_fp.matmul(a, b, accumulator=name)
    # without terms: values would be compared with what no kernel wrote
    for name in ("b200_nvfp4", "b200_mxfp8", "posit16-exact"):
        custom_fp.matmul(a[..., :0], b[:, :0], accumulator=name)


def in_blocks():
    for name in ("nvfp4", "mxfp8_e4m3", "nvfp4_4over6", "fp8_tensor", "int8_channel", *NEAREST):
        for rounding in ROUNDINGS if name not in NEAREST else ROUNDINGS[:1]:
            for axis in (None, 0):
                custom_fp.quantize(X, name, rounding=rounding, axis=axis)
            custom_fp.unpack(custom_fp.pack(X, name, rounding=rounding), name, X.shape)
        for axis in (None, 0):
            custom_fp.decode(custom_fp.encode(X, name, axis=axis), name, axis=axis)
        custom_fp.quantize(X.double(), name)
        custom_fp.quantize_rows(X, name)


CALLS = [elementwise, sums, products, in_blocks]


@pytest.fixture(scope="module")
def launches():
    """Return (name, arguments) of every launch of each call. No kernel runs."""
    collected = {}
    for call in CALLS:
        found = collected[call] = []
        with replaced_driver(lambda name, grid, args, found=found: found.append((name, args))), in_cuda():
            call()
    return collected


@pytest.mark.parametrize("call", CALLS)
def test_cupy_accepts_every_argument(launches, call):
    assert launches[call]
    if shutil.which("g++"):
        declared = prototypes(nvrtc.source())
        for name, args in launches[call]:
            check_types(name, args, declared[name])


def test_no_kernel_and_no_operator_is_missed(launches):
    assert {name for call in CALLS for name, _ in launches[call]} == set(cuda.KERNELS)
    computing = {name for name, module in custom_fp._MODULES.items() if module == "ops"} - {
        "backend",
        "packed_size",
    }
    source = Path(__file__).read_text() + Path(test_backends.__file__).read_text()
    assert {name for name in computing if f"custom_fp.{name}(" not in source} == set()


def test_cupy_refuses_an_array_of_several_values():
    stream = type("Stream", (), {"ptr": 0})
    with pytest.raises(TypeError, match="size one"):
        check_cupy_accepts((1,), (1,), (np.zeros(481, np.uint64),), stream)
    with pytest.raises(TypeError, match="Unsupported type"):
        check_cupy_accepts((1,), (1,), (torch.empty(1),), stream)
