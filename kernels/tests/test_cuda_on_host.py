"""The CUDA kernels compiled for the CPU and run thread by thread: their results are those of the CPU kernels, bit for
bit. No GPU is needed; that a GPU's compiler and hardware keep to the same arithmetic is what test_gpu.py is for.
test_cuda_launched.py has those with several ways to be launched.
"""

import math
from ctypes import c_int, c_longlong, c_uint

import custom_fp
import pytest
import torch
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rounding, Rule
from kernels_on_host import OFFSET, ROUNDINGS, SEED, address, addresses, as_drawn, as_how, same_bits

FORMATS = ["e5m2", "e4m3fn", "e3m0", "e2m1fn", "e1m2", "bf16", "fp16", "e5m23", "fp32", "e4m3b-100"]
OVERFLOWS = ["infinity", "saturate"]


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
    how, drawn = as_how(rounding, overflow), as_drawn(rounding)
    kernels.be_thread(0, 1)
    for terms in rows(n, fmt):
        out = torch.empty(n)
        common = (address(out), c_longlong(n), c_uint(fmt.spec), how)
        getattr(kernels, f"quantize_{Rule(rounding).rounding}_f32")(address(terms[0]), *common, *drawn)
        expected = custom_fp.quantize(terms[0], fmt, **rule)
        assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
        for kahan in (False, True):
            kernel = getattr(kernels, f"accumulate_{Rule(rounding).rounding}")
            kernel(addresses(terms), c_int(len(terms)), *common, c_int(kahan), *drawn)
            expected = custom_fp.accumulate(list(terms), fmt, kahan=kahan, **rule)
            assert torch.equal(out.view(torch.int32), expected.view(torch.int32)), kahan


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_quantize_of_doubles(kernels, name, rounding, overflow):
    """NaN among them, which a GPU's conversion to float32 gives other bits."""
    fmt, n = Format.parse(name), 2003
    rule = {"rounding": rounding, "overflow": overflow, "seed": SEED, "offset": OFFSET}
    how, drawn = as_how(rounding, overflow), as_drawn(rounding)
    kernels.be_thread(0, 1)
    g = torch.Generator().manual_seed(1)
    patterns = torch.randint(-(2**63), 2**63 - 1, (n,), generator=g).view(torch.float64)
    for x in (patterns, torch.randn(n, generator=g, dtype=torch.float64)):
        x[[0, 5, 2000]] = torch.tensor([math.nan, -math.nan, math.inf], dtype=torch.float64)
        out = torch.empty(n)
        kernel = getattr(kernels, f"quantize_{Rule(rounding).rounding}_f64")
        kernel(address(x), address(out), c_longlong(n), c_uint(fmt.spec), how, *drawn)
        assert torch.equal(out.view(torch.int32), custom_fp.quantize(x, fmt, **rule).view(torch.int32))


SHARED = [  # what shares kernels: formats without a sign or a -0, roundings that have none to themselves
    *[(name, rounding, "infinity") for name in ("e4m3fnuz", "ue5m3", "ue5m6") for rounding in ROUNDINGS[:3]],
    *[
        (name, rounding, "infinity")
        for name in ("e4m3", "ue4m3", "e3m0fnuz")
        for rounding in list(Rounding)[3:]
    ],
    *[(name, rounding, "propagate") for name in ("e5m2", "e4m3fo", "ue5m6") for rounding in Rounding],
]


@pytest.mark.parametrize(("name", "rounding", "overflow"), SHARED)
def test_kernels_that_are_shared(launched, kernels, name, rounding, overflow):
    cuda, _, _ = launched
    fmt, n = Format.parse(name), 515
    words = {"rounding": rounding, "overflow": overflow, "seed": SEED, "offset": OFFSET}
    rule = Rule(*words.values())
    for terms in rows(n, fmt):
        out = torch.empty(n)
        for x in (terms[0], terms[1].double()):
            cuda.quantize(x, fmt, rule, out)
            assert same_bits(out, custom_fp.quantize(x, fmt, **words))
        for kahan in (False, True):
            cuda.accumulate(list(terms), fmt, kahan, rule, out)
            assert same_bits(out, custom_fp.accumulate(list(terms), fmt, kahan=kahan, **words)), kahan
        data = torch.zeros(custom_fp.packed_size(n, fmt), dtype=torch.uint8)
        how = as_how(rounding, overflow), *as_drawn(rounding)
        for shift in (0, -140):
            for thread in 3 * [*range(256)]:
                kernels.be_thread(thread, 256)
                pack = getattr(kernels, f"pack_{cuda.mode_name(rule, fmt)}")
                pack(
                    address(terms[0]),
                    address(data),
                    c_longlong(n),
                    c_uint(fmt.spec),
                    how[0],
                    c_int(shift),
                    *how[1:],
                )
            assert torch.equal(data, custom_fp.pack(terms[0], fmt, shift=shift, **words)), shift


@pytest.mark.parametrize("name", [*FORMATS, "e4m3fnuz", "ue5m3", "e4m3fo"])
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
    how, drawn = as_how(rounding, overflow), as_drawn(rounding)
    for x, *_ in rows(n, fmt):
        for shift in (0, 5, -140):
            data = torch.zeros(custom_fp.packed_size(n, fmt), dtype=torch.uint8)
            common = (address(data), c_longlong(n), c_uint(fmt.spec), how, c_int(shift))
            # three times: in the next turn a thread finds what those after it put into shared memory, random bits
            # and then codes
            for thread in 3 * [*range(256)]:
                kernels.be_thread(thread, 256)
                getattr(kernels, f"pack_{Rule(rounding).rounding}")(address(x), *common, *drawn)
            assert torch.equal(data, custom_fp.pack(x, fmt, shift=shift, **rule)), shift
