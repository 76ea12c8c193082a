"""The PTX of some CUDA kernels, run on the CPU, returns the bits of the CPU kernels.

A kernel may access only the memory that its launch was given. scripts/checks/check_ptx.py runs all kernels
with every format, rounding and kind of grid.
"""

import random
import shutil

import custom_fp
import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy brings NVRTC; pip install cupy-cuda13x")
import ptx_cases
import ptx_to_cpp
import torch
from backend_choice import in_reference
from cupy.cuda import nvrtc as cupy_nvrtc
from custom_fp import cuda, nvrtc
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rule
from custom_fp.scaled.cuda import backend
from ptx_device import Device, compile_ptx, ptx_of

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    try:
        cupy_nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"no NVRTC library: {error}")
    some = ptx_cases.SOME_KERNELS
    return Device(ptx_of(some), nvrtc.source(), tmp_path_factory.mktemp("ptx"), some)


@pytest.fixture
def to(device):
    return ptx_cases.Compared(device, random.Random(0))


@pytest.mark.parametrize("name", ["e5m2", "e4m3fn", "e3m0", "bf16", "e5m23"])
def test_bits(to, name):
    fmt, (nearest,), (towards,) = (
        Format.parse(name),
        ptx_cases.rules(["nearest_even"], ["infinity"]),
        ptx_cases.rules(["toward_zero"], ["saturate"]),
    )
    for _ in range(3):
        ptx_cases.elements(to, fmt, nearest)
        ptx_cases.sums(to, fmt, towards)
    assert not to.wrong and to.values["quantize"] and to.values["accumulate_packed"]


BYTES = {
    "nearest_even": ["nearest_even"],
    "toward_zero": ["toward_zero"],
    "stochastic": ["stochastic", "stochastic_8", "stochastic_even_6", "stochastic_odd_18"],
    "otherwise": ["nearest_away", "toward_positive", "toward_negative", "to_odd"],
}


@pytest.mark.parametrize(
    ("mode", "architecture"), [*((mode, "compute_90") for mode in BYTES), ("nearest_even", "compute_80")]
)
def test_sums_of_all_pairs_of_bytes(tmp_path, mode, architecture):
    """The sums equal the reference. If all values and sums of a thread are finite, it adds them only once."""
    kernel, codes = f"accumulate_bytes_{mode}", torch.arange(256, dtype=torch.uint8)
    device = Device(ptx_of([kernel], architecture), nvrtc.source(), tmp_path, {kernel}, "-O1")
    pairs = torch.cartesian_prod(codes, codes)

    def sums(pairs, fmt, rule):
        terms, out = [*pairs.T.contiguous()], torch.full((len(pairs),), 0x55, dtype=torch.uint8)
        with device.in_place():
            cuda.accumulate_packed(terms, fmt, len(out), False, Rule(**rule), out)
        with in_reference():
            assert torch.equal(out, custom_fp.accumulate_packed(terms, fmt, len(out), **rule)), (fmt, rule)
        return device.counts[kernel].instructions

    for name in ("e4m3", "e4m3fn", "e5m2", "e5m2fn", "e3m4", "e2m5"):
        fmt = Format.parse(name)
        values = custom_fp.decode(pairs, fmt)
        finite = pairs[(values.sum(1).abs() <= fmt.max) & values.isfinite().all(1)]
        finite = finite[: len(finite) // 8 * 8]
        for rule in ptx_cases.rules(BYTES[mode], ["infinity", "saturate"]):
            sums(pairs, fmt, rule)
            if name != "e5m2fn":  # its largest values do not fit into float16, so they are added twice
                assert sums(finite, fmt, rule) <= 1.1 * sums(torch.zeros_like(finite), fmt, rule)


def test_products_transforms_and_scales(to, device):
    a, b = to.data(2, 70, 33, kind="normal"), to.data(1, 33, 65, kind="normal")
    for name in ("e5m10", "e4m3"):
        out, expected = to.empty(2, 70, 65), custom_fp.matmul(a, b, accumulator=name)
        to.equal("matmul", lambda n=name, o=out: cuda.matmul(a, b, Format.parse(n), False, o), out, expected)
    x, out = to.data(1, 300, 2), to.empty(1, 300, 2)
    expected = custom_fp.hadamard(x, 64, seed=5, axis=1)
    to.equal("hadamard", lambda: cuda.hadamard(x, 64, 5, False, out), out, expected)
    for name in ("nvfp4", "mxfp8_e4m3"):
        for rule in ptx_cases.rules(["stochastic", "stochastic_even_4"], ["infinity"]):
            ptx_cases.scaled(to, name, rule, (3, 5, 150))
    assert not to.wrong and {"matmul", "hadamard", "quantize_scaled"} <= set(to.values)


def test_codes_are_decoded_with_a_table_that_all_threads_fill(to):
    x = to.data(4099)
    for name in ("e4m3", "e2m1", "e5m10"):
        fmt, out = Format.parse(name), to.empty(4099)
        data = custom_fp.pack(x, fmt)
        expected = custom_fp.unpack(data, fmt, (4099,), shift=3)
        to.equal("unpack", lambda f=fmt, d=data, o=out: cuda.unpack(d, f, 3, o), out, expected)
    for name in ("nvfp4", "mxint8"):
        fmt, out = custom_fp.parse(name), to.empty(150, 33)
        parts = custom_fp.encode(to.data(150, 33, kind="normal"), fmt, axis=0)
        expected = custom_fp.decode(parts, fmt, axis=0)
        to.equal("decode", lambda f=fmt, p=parts, o=out: backend.decode(*p, f, o, axis=0), out, expected)
    assert not to.wrong and {"unpack", "decode"} <= set(to.values)


def test_fused_sums(to):
    for _ in range(3):
        ptx_cases.fused_sum(to)
    assert not to.wrong and to.values["fused_sum"]


def test_a_wrong_launch_is_found(device):
    x, out = torch.randn(100), torch.empty(100)
    rest = np.uint32(Format.parse("e5m2").spec), *cuda.rule_args(Rule())

    def launch(*args):
        with device.in_place():
            known = {cuda.address(x), cuda.address(out)}
            assert len(known) == 2
            cuda.launch("quantize_nearest_even_f32", x, (1,), *args)

    address = np.uint64(x.data_ptr()), np.uint64(out.data_ptr())
    launch(*address, np.int64(100), *rest)
    assert torch.equal(out, custom_fp.quantize(x, "e5m2"))
    with pytest.raises(AssertionError, match="out of bounds"):
        launch(*address, np.int64(101), *rest)
    with pytest.raises(AssertionError, match="argument 2"):
        launch(*address, np.int32(100), *rest)
    with pytest.raises(AssertionError, match="argument 1 is no tensor's address"):
        launch(address[0], np.uint64(64), np.int64(100), *rest)
    with pytest.raises(AssertionError, match="misaligned"):
        launch(address[0] + np.uint64(2), address[1], np.int64(99), *rest)


def test_work_is_counted(device):
    x, out = torch.randn(1 << 14), torch.empty(1 << 14)
    for source, doubles in ((x, False), (x.double(), True)):
        with device.in_place():
            cuda.quantize(source, Format.parse("e5m2"), Rule(), out)
        counts = device.counts[f"quantize_nearest_even_f{64 if doubles else 32}"]
        assert counts.loaded == source.nbytes and counts.stored == out.nbytes
        assert 10 * len(x) < counts.instructions < 200 * len(x) and bool(counts.doubles) == doubles


BAD = """
extern "C" __global__ void half_waits(int* out) {
    if (threadIdx.x < 100) __syncthreads();
    out[threadIdx.x] = 1;
}
extern "C" __global__ void no_barrier(int* out) {
    __shared__ int v[256];
    v[threadIdx.x] = threadIdx.x;
    if (out[0] == 7) __syncthreads();
    out[threadIdx.x] = v[255 - threadIdx.x];
}
extern "C" __global__ void half_shuffle(int* out) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_down_sync(0xffffffffu, 5, 1);
}
"""


def test_threads_that_do_not_meet_are_found(tmp_path):
    device = Device(compile_ptx(BAD), BAD, tmp_path)
    out = torch.zeros(256, dtype=torch.int32)

    def launch(name):
        with device.in_place():
            cuda.launch(name, out, (1,), cuda.address(out))

    for name in ("half_waits", "half_shuffle"):
        with pytest.raises(AssertionError, match="wait for each other"):
            launch(name)
    launch("no_barrier")
    assert not torch.equal(out, torch.arange(255, -1, -1, dtype=torch.int32))


def test_subnormal_numbers_are_kept():
    """CuPy's own compilation would add -ftz=true."""
    with pytest.raises(NotImplementedError, match="ftz"):
        text = compile_ptx('extern "C" __global__ void f(float* x) { *x += 1; }', part=("--ftz=true",))
        ptx_to_cpp.kernels(text)
