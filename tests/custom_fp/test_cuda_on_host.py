"""The CUDA kernels compiled for the CPU and run thread by thread: their results are those of the CPU kernels, bit for
bit. No GPU is needed; that a GPU's compiler and hardware keep to the same arithmetic is what test_gpu.py is for.
"""

import math
import shutil
import subprocess
from ctypes import CDLL, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from pathlib import Path

import custom_fp
import pytest
import torch
from custom_fp.formats.scalar import Format

HERE = Path(__file__).parent
CSRC = Path(custom_fp.__file__).parent / "csrc"
OPTIONS = [
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-shared",
    "-fPIC",
    "-w",
]
FORMATS = ["e5m2", "e4m3fn", "e3m0", "e2m1fn", "e1m2", "bf16", "fp16", "e5m23", "fp32", "e4m3b-100"]
ROUNDINGS = ["nearest_even", "toward_zero", "stochastic"]
OVERFLOWS = ["infinity", "saturate"]
SEED, OFFSET = 77, 1001


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    library = tmp_path_factory.mktemp("cuda") / "kernels.so"
    source = HERE / "cuda_on_host.cpp"
    subprocess.run([compiler, *OPTIONS, f"-I{CSRC}", str(source), "-o", str(library)], check=True)
    return CDLL(str(library))


def address(tensor):
    return c_void_p(tensor.data_ptr())


def rows(n, fmt):
    g = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (4, n), generator=g).to(torch.int32).view(torch.float32)
    return patterns, torch.randn(4, n, generator=g) * min(fmt.max / 4, 2.0)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_quantize_and_accumulate(kernels, name, rounding, overflow):
    fmt, n = Format.parse(name), 2003
    rule = {"rounding": rounding, "overflow": overflow, "seed": SEED, "offset": OFFSET}
    saturate, drawn = c_int(overflow == "saturate"), (c_ulonglong(SEED), c_ulonglong(OFFSET))
    kernels.be_thread(0, 1)
    for terms in rows(n, fmt):
        out = torch.empty(n)
        common = (address(out), c_longlong(n), c_uint(fmt.spec), saturate)
        getattr(kernels, f"quantize_{rounding}_f32")(address(terms[0]), *common, *drawn)
        expected = custom_fp.quantize(terms[0], fmt, **rule)
        assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
        table = torch.tensor([term.data_ptr() for term in terms])
        for kahan in (False, True):
            kernel = getattr(kernels, f"accumulate_{rounding}")
            kernel(address(table), c_int(len(terms)), *common, c_int(kahan), *drawn)
            expected = custom_fp.accumulate(list(terms), fmt, kahan=kahan, **rule)
            assert torch.equal(out.view(torch.int32), expected.view(torch.int32)), kahan


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_quantize_of_doubles(kernels, name, rounding, overflow):
    """NaN among them, which a GPU's conversion to float32 gives other bits."""
    fmt, n = Format.parse(name), 2003
    rule = {"rounding": rounding, "overflow": overflow, "seed": SEED, "offset": OFFSET}
    saturate, drawn = c_int(overflow == "saturate"), (c_ulonglong(SEED), c_ulonglong(OFFSET))
    kernels.be_thread(0, 1)
    g = torch.Generator().manual_seed(1)
    patterns = torch.randint(-(2**63), 2**63 - 1, (n,), generator=g).view(torch.float64)
    for x in (patterns, torch.randn(n, generator=g, dtype=torch.float64)):
        x[[0, 5, 2000]] = torch.tensor([math.nan, -math.nan, math.inf], dtype=torch.float64)
        out = torch.empty(n)
        kernel = getattr(kernels, f"quantize_{rounding}_f64")
        kernel(address(x), address(out), c_longlong(n), c_uint(fmt.spec), saturate, *drawn)
        assert torch.equal(out.view(torch.int32), custom_fp.quantize(x, fmt, **rule).view(torch.int32))


@pytest.mark.parametrize("name", FORMATS)
def test_scale_and_codes(kernels, name):
    fmt, n = Format.parse(name), 2003
    kernels.be_thread(0, 1)
    out, spec = torch.empty(n), c_uint(fmt.spec)
    for x in rows(n, fmt)[0]:
        for shift in (0, 5, -140, 200):
            kernels.scale_f32(address(x), address(out), c_longlong(n), c_int(shift))
            assert torch.equal(out.view(torch.int32), custom_fp.scale_pow2(x, shift).view(torch.int32))
        expected = custom_fp.encode(x, fmt)
        codes, size = torch.empty_like(expected), expected.element_size()
        getattr(kernels, f"encode_{size}")(address(x), address(codes), c_longlong(n), spec)
        assert torch.equal(codes, expected)
        getattr(kernels, f"decode_{size}")(address(codes), address(out), c_longlong(n), spec)
        assert torch.equal(out.view(torch.int32), custom_fp.decode(codes, fmt).view(torch.int32))


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "e2m1fn", "e3m2", "bf16", "fp32"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_pack(kernels, name, rounding, overflow):
    fmt, n = Format.parse(name), 2003  # one thread block
    rule = {"rounding": rounding, "overflow": overflow, "seed": SEED, "offset": OFFSET}
    saturate, drawn = c_int(overflow == "saturate"), (c_ulonglong(SEED), c_ulonglong(OFFSET))
    for x, *_ in rows(n, fmt):
        for shift in (0, 5, -140):
            data = torch.zeros(custom_fp.packed_size(n, fmt), dtype=torch.uint8)
            common = (address(data), c_longlong(n), c_uint(fmt.spec), c_int(shift), saturate)
            # twice: in the second turn a thread finds what those after it put into shared memory
            for thread in [*range(256), *range(256)]:
                kernels.be_thread(thread, 256)
                getattr(kernels, f"pack_{rounding}")(address(x), *common, *drawn)
            assert torch.equal(data, custom_fp.pack(x, fmt, shift=shift, **rule)), shift
