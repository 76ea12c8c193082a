"""CuPy accepts the arguments of every kernel that the public operators launch. No GPU is needed (cupy_launches.py)."""

import shutil
from pathlib import Path

import custom_fp
import numpy as np
import pytest
import torch

pytest.importorskip("cupy", reason="CuPy converts the arguments; pip install cupy-cuda13x")
from cupy_launches import check_cupy_accepts, check_types, prototypes, replaced_driver
from custom_fp import backends, cuda, nvrtc

ROUNDINGS = (
    "nearest_even",
    "toward_zero",
    "stochastic",
    "nearest_away",
)  # the last one: kernels named "otherwise"
SCALED = ("nvfp4", "mxfp8_e4m3", "nvfp4_4over6", "fp8_tensor", "int8_channel")
NEAREST = ("nf4_b64", "dynamic_tree", "int4_affine_b32", "int8_affine")  # codebooks and affine integers
X = torch.randn(1 << 8, 1 << 7, generator=torch.Generator().manual_seed(0))  # large: blocks of a whole tensor


def quantize(names, roundings=ROUNDINGS):
    for name in names:
        for rounding in roundings:
            for axis in (None, 0):
                custom_fp.quantize(X, name, rounding=rounding, axis=axis)
        custom_fp.quantize(X.double(), name)
        custom_fp.quantize_rows(X, name)


def quantize_doubles():
    for name in ("e4m3", "takum8"):
        for rounding in ROUNDINGS:
            custom_fp.quantize(X.double(), name, rounding=rounding)


def encode_and_decode():
    for name in ("e4m3", "fp16", "fp32", "takum8", "takum16", *SCALED, *NEAREST):
        for axis in (None, 0):
            custom_fp.decode(custom_fp.encode(X, name, axis=axis), name, axis=axis)
    for name in ("e4m3", "takum8"):
        for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
            custom_fp.decode(torch.zeros(5, dtype=dtype), name)


def pack_and_unpack():
    for name in ("e4m3", "takum8", "mxfp4", *SCALED, *NEAREST):
        for rounding in ROUNDINGS if name not in NEAREST else ROUNDINGS[:1]:
            custom_fp.unpack(custom_fp.pack(X, name, rounding=rounding), name, X.shape)


def accumulate(workers):
    terms = list(torch.randn(workers, 24))
    for name in ("fp32", "e4m3", "ue5m3", "takum8"):
        packed = [custom_fp.pack(term, name) for term in terms]
        for rounding in ROUNDINGS:
            for kahan in (False, True):
                how = {"kahan": kahan, "rounding": rounding}
                custom_fp.accumulate(terms, name, **how)
                custom_fp.accumulate_packed(packed, name, 24, **how)
        for order in ({"order": "exact"}, {"order": "aligned", "width": 24}):
            custom_fp.accumulate(terms, name, **order)
            custom_fp.accumulate_packed(packed, name, 24, **order)


def matmul():
    a, b = torch.randn(2, 5, 32), torch.randn(2, 32, 3)
    for name in ("fp16", "takum8", "h100_fp16", "fp32-fused", "fp16-stochastic", "fp16-nearest_away"):
        custom_fp.matmul(a, b, accumulator=name)
    custom_fp.matmul(a, b, accumulator="fp16-toward_zero")
    for name in ("b200_nvfp4", "b200_mxfp8", "posit16-exact"):
        custom_fp.matmul(
            a[..., :0], b[:, :0], accumulator=name
        )  # values would be compared with what no kernel wrote
    for name in ("fp16", "takum8"):
        custom_fp.matmul(a, b, accumulator=name, kahan=True)


def magnitudes_and_scales():
    for x in (X, X.double()):
        custom_fp.max_exponent(x)
        custom_fp.scale_pow2(x, 3)


CALLS = {
    "quantize": lambda: quantize(("e4m3", "e5m2", "ue5m3", "takum8")),
    "quantize, float64": quantize_doubles,
    "quantize, scaled formats": lambda: quantize(SCALED),
    "quantize, codebooks and affine integers": lambda: quantize(NEAREST, ["nearest_even"]),
    "encode, decode": encode_and_decode,
    "pack, unpack": pack_and_unpack,
    "accumulate": lambda: accumulate(3),
    "accumulate, more tensors than arguments": lambda: accumulate(cuda.FEW + 1),
    "matmul": matmul,
    "hadamard": lambda: custom_fp.hadamard(X, 16, seed=1),
    "max_exponent, scale_pow2": magnitudes_and_scales,
}


@pytest.fixture
def launches(monkeypatch):
    """Send CPU tensors to the CUDA backends and collect (name, arguments) of every launch; no kernel runs."""
    collected = []

    def backend_of(modules, device):
        return backends._resolve((modules.cuda if device == "cpu" else None) or modules.any)

    monkeypatch.setattr(backends, "_backend", backend_of)
    backends.function.cache_clear()
    with replaced_driver(lambda name, grid, args: collected.append((name, args))):
        yield collected
    backends.function.cache_clear()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_cupy_accepts_every_argument(launches, call):
    call()
    assert launches
    if shutil.which("g++"):
        declared = prototypes(nvrtc.source())
        for name, args in launches:
            check_types(name, args, declared[name])


def test_no_kernel_is_missed(launches):
    for call in CALLS.values():
        call()
    assert {name for name, _ in launches} == set(cuda.KERNELS)


def test_no_operator_is_missed():
    computing = {name for name, module in custom_fp._MODULES.items() if module == "ops"} - {
        "backend",
        "packed_size",
    }
    source = Path(__file__).read_text()
    assert {name for name in computing if f"custom_fp.{name}(" not in source} == set()


def test_cupy_refuses_an_array_of_several_values():
    stream = type("Stream", (), {"ptr": 0})
    with pytest.raises(TypeError, match="size one"):
        check_cupy_accepts((1,), (1,), (np.zeros(481, np.uint64),), stream)
    with pytest.raises(TypeError, match="Unsupported type"):
        check_cupy_accepts((1,), (1,), (torch.empty(1),), stream)
