"""CUDA kernels against the CPU, bit for bit: every operator, rounding and format family.

pytest -m gpu kernels/tests        (scripts/gpu_check.sh runs this and the benchmarks)
"""

import custom_fp
import pytest
import torch
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rounding

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

FORMATS = [
    Format.parse(name)
    for name in [
        *("e5m2", "e4m3", "e3m4", "e3m0", "e4m0", "e2m1", "e1m2", "e1m0", "e5m10", "e6m9", "e5m23", "e7m11"),
        *("bf16", "fp32", "tf32", "e8m0", "e8m3", "e8m16", "e4m3fn", "e5m2fn", "e3m0fn", "e1m3fn", "e1m0fn"),
        *("e8m0fn", "e2m1fn", "e2m3fn", "e3m2fn", "e4m3b11fn", "e4m3b-100", "e2m2b127", "e5m12fn"),
        *("e4m3fnuz", "e5m2fnuz", "e5m10fnuz", "e3m0fnuz", "e4m3fo", "ue4m3", "ue5m3", "ue5m6", "ue8m23"),
    ]
]
ROUNDINGS = list(Rounding)


def equal_bits(on_gpu, on_cpu):
    view = {4: torch.int32, 1: torch.uint8, 8: torch.int64}[on_cpu.element_size()]
    return torch.equal(on_gpu.cpu().view(view), on_cpu.view(view))


@pytest.fixture(scope="module")
def assorted():
    """All bit patterns alike, normal values at several scales, and specials; no multiple of 4 of them."""
    g = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (200_000,), generator=g).to(torch.int32).view(torch.float32)
    normal = [torch.randn(50_000, generator=g) * scale for scale in (1, 1e-3, 1e-6, 1e4, 1e30, 1e-38)]
    inf = float("inf")
    specials = torch.tensor([0.0, inf, float("nan"), 2.0**-149, 2.0**-126, 3.4028234663852886e38, 1.5])
    return torch.cat([patterns, *normal, specials, -specials])[:-1]


def test_backend():
    assert custom_fp.backend("cuda") == "cuda"


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_quantize(fmt, rounding, assorted):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = assorted.to(dtype)
        for overflow in ("infinity", "saturate", "propagate"):
            kwargs = {"rounding": rounding, "overflow": overflow, "seed": 2**40 + 7, "offset": 100}
            assert equal_bits(
                custom_fp.quantize(x.cuda(), fmt, **kwargs), custom_fp.quantize(x, fmt, **kwargs)
            )


def test_every_boundary_of_small_formats():
    for fmt in FORMATS:
        if fmt.bits > 11 or fmt.max_code == 0:
            continue
        values = custom_fp.decode(torch.arange(fmt.max_code + 1), fmt).double()
        x = torch.cat([values, (values[1:] + values[:-1]) / 2, 2 * values[-1:]]).float()
        infinity = torch.tensor(float("inf"))
        x = torch.cat([x, x.nextafter(infinity), x.nextafter(-infinity)])
        x = torch.cat([x, -x])
        assert equal_bits(custom_fp.quantize(x.cuda(), fmt), custom_fp.quantize(x, fmt)), fmt


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 63, 64, 65, 1023, 4099])
def test_unaligned_addresses_and_odd_lengths(offset, n):
    base = torch.randn(5000)
    x, x_gpu = base[offset : offset + n], base.cuda()[offset : offset + n]
    for rounding in ROUNDINGS:
        got = custom_fp.quantize(x_gpu, "e4m3", rounding=rounding, seed=1)
        assert equal_bits(got, custom_fp.quantize(x, "e4m3", rounding=rounding, seed=1))
    for name in ("e5m2", "e3m2", "e5m3", "fp16"):
        data = custom_fp.pack(x, name)
        assert equal_bits(custom_fp.pack(x_gpu, name), data)
        storage = torch.zeros(len(data) + offset, dtype=torch.uint8, device="cuda")
        storage[offset:] = data.cuda()
        assert equal_bits(custom_fp.unpack(storage[offset:], name, (n,)), custom_fp.unpack(data, name, (n,)))


def test_strides_shapes_and_out():
    x = torch.randn(6, 7, 10)
    for view in (lambda t: t[::2, :, 1::3], lambda t: t.permute(2, 0, 1), lambda t: t[0, 0, 0]):
        assert equal_bits(custom_fp.quantize(view(x.cuda()), "e3m2"), custom_fp.quantize(view(x), "e3m2"))
    out = torch.zeros(6, 7, 20, device="cuda")[..., ::2]
    assert custom_fp.quantize(x.cuda(), "e3m2", out=out) is out
    assert equal_bits(out.contiguous(), custom_fp.quantize(x, "e3m2"))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_codes(fmt, assorted):
    x = assorted
    codes = custom_fp.encode(x, fmt)
    assert equal_bits(custom_fp.encode(x.cuda(), fmt), codes)
    assert equal_bits(custom_fp.decode(codes.cuda(), fmt), custom_fp.decode(codes, fmt))
    for shift in (0, 9, -9, 140, -140):
        data = custom_fp.pack(x, fmt, shift=shift)
        assert equal_bits(custom_fp.pack(x.cuda(), fmt, shift=shift), data)
        got = custom_fp.unpack(data.cuda(), fmt, x.shape, shift=-shift)
        assert equal_bits(got, custom_fp.unpack(data, fmt, x.shape, shift=-shift))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("kahan", [False, True])
def test_accumulate(fmt, kahan):
    g = torch.Generator().manual_seed(1)
    patterns = torch.randint(-(2**31), 2**31, (5, 10_001), generator=g).to(torch.int32).view(torch.float32)
    plain = torch.randn(5, 10_001, generator=g) * min(fmt.max / 4 or 1.0, 2.0)
    for terms in (list(patterns), list(plain)):
        on_gpu = [term.cuda() for term in terms]
        payloads = [custom_fp.pack(term, fmt) for term in terms]
        payloads_gpu = [payload.cuda() for payload in payloads]
        for rounding in ROUNDINGS:
            for overflow in ("infinity", "saturate", "propagate"):
                rule = {"rounding": rounding, "overflow": overflow, "seed": -5, "offset": 1001}
                expected = custom_fp.accumulate(terms, fmt, kahan=kahan, **rule)
                assert equal_bits(custom_fp.accumulate(on_gpu, fmt, kahan=kahan, **rule), expected)
                got = custom_fp.accumulate_packed(payloads_gpu, fmt, 10_001, kahan=kahan, **rule)
                expected = custom_fp.accumulate_packed(payloads, fmt, 10_001, kahan=kahan, **rule)
                assert equal_bits(got, expected)
                assert equal_bits(
                    custom_fp.pack(on_gpu[0], fmt, **rule), custom_fp.pack(terms[0], fmt, **rule)
                )


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("kahan", [False, True])
def test_matmul(fmt, kahan):
    g = torch.Generator().manual_seed(2)
    for a_shape, b_shape in [
        ((70, 33), (33, 65)),
        ((3, 5, 17), (3, 17, 9)),
        ((2, 4, 8), (8, 130)),
        ((3, 0), (0, 4)),
    ]:
        for scale in (1.0, 1e-4, 1e19):
            a, b = torch.randn(a_shape, generator=g) * scale, torch.randn(b_shape, generator=g)
            if a.numel():
                a.view(-1)[3], b.view(-1)[5] = float("inf"), float("nan")
            got = custom_fp.matmul(a.cuda(), b.cuda(), accumulator=fmt, kahan=kahan)
            assert equal_bits(got, custom_fp.matmul(a, b, accumulator=fmt, kahan=kahan))


@pytest.mark.parametrize(
    "name", ["fp32-exact", "fp16-pairwise", "fp16-stochastic_5", "fp32-fused", "h100_fp16", "deepseek_v3"]
)
def test_accumulators(name):
    g = torch.Generator().manual_seed(2)
    a = torch.randn(2, 70, 133, generator=g).bfloat16().float()
    b = torch.randn(133, 65, generator=g).bfloat16().float()
    expected = custom_fp.matmul(a, b, accumulator=name, seed=3)
    assert equal_bits(custom_fp.matmul(a.cuda(), b.cuda(), accumulator=name, seed=3), expected)


@pytest.mark.parametrize(
    "name", ["mxfp8_e4m3", "mxint8", "nvfp4", "nvfp4_2d", "nvfp4_4over6", "fp8_tensor", "int8_channel"]
)
def test_scaled_formats(name):
    x = torch.randn(70, 513, generator=torch.Generator().manual_seed(4)) * torch.logspace(-20, 8, 513)
    x[3, 5], x[40, 90:300] = float("nan"), 0.0
    on_gpu, own = x.cuda(), custom_fp.parse(name)
    for axis in (None, 0, 1):
        for rounding in ROUNDINGS:
            rule = {"rounding": rounding, "seed": 5, "offset": 1001, "axis": axis}
            assert equal_bits(custom_fp.quantize(on_gpu, own, **rule), custom_fp.quantize(x, own, **rule))
            assert equal_bits(custom_fp.pack(on_gpu, own, **rule), custom_fp.pack(x, own, **rule))
        expected, encoded = custom_fp.encode(x, own, axis=axis), custom_fp.encode(on_gpu, own, axis=axis)
        assert all(map(equal_bits, encoded, expected))
        assert equal_bits(
            custom_fp.decode(encoded, own, axis=axis), custom_fp.decode(expected, own, axis=axis)
        )
        data = custom_fp.pack(x, own, axis=axis)
        got = custom_fp.unpack(data.cuda(), own, x.shape, axis=axis)
        assert equal_bits(got, custom_fp.unpack(data, own, x.shape, axis=axis))


def test_scale_and_max_exponent(assorted):
    for shift in (0, 3, -3, 127, -127, 200, -200, 10**9):
        assert equal_bits(custom_fp.scale_pow2(assorted.cuda(), shift), custom_fp.scale_pow2(assorted, shift))
    for x in (
        assorted,
        assorted.double(),
        assorted[:1] * 0,
        assorted[:0],
        torch.tensor([2.0**-149]),
        torch.randn(3),
    ):
        assert custom_fp.max_exponent(x.cuda()) == custom_fp.max_exponent(x)


def test_runs_on_torchs_current_stream():
    x = torch.randn(1 << 22, device="cuda")
    expected = custom_fp.quantize(x, "e5m2")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)  # the stream is busy; a kernel on another one would read zeros
        y.copy_(x)
        got = custom_fp.quantize(y, "e5m2")
    stream.synchronize()
    assert torch.equal(got, expected)


@pytest.mark.parametrize("terms", [8, 500])  # more than a kernel takes with its arguments, too
def test_a_cuda_graph_holds_sums(terms):
    g = torch.Generator().manual_seed(2)
    first, second = torch.randn(2, terms, 1000, generator=g)
    x = first.cuda()
    data = [custom_fp.pack(row, "e4m3") for row in x]

    def sums():
        total = custom_fp.accumulate(list(x), "e4m3", kahan=True)
        packed = custom_fp.accumulate_packed(data, "e4m3", 1000, rounding="stochastic", seed=1)
        return total, packed, custom_fp.accumulate(list(x), "posit8")

    expected = sums()  # compiles the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = sums()
    graph.replay()
    assert all(map(torch.equal, held, expected))
    x.copy_(second)
    graph.replay()
    assert equal_bits(held[0], custom_fp.accumulate(list(second), "e4m3", kahan=True))


def test_gradients_compile_and_vmap():
    x = torch.randn(8, 16, device="cuda", requires_grad=True)
    w = torch.randn(16, 4, device="cuda", requires_grad=True)

    def function(x, w):
        return custom_fp.matmul(custom_fp.quantize(x, "e4m3"), w, accumulator="e5m10")

    function(x, w).sum().backward()
    cpu = [t.detach().cpu().requires_grad_() for t in (x, w)]
    function(*cpu).sum().backward()
    assert equal_bits(x.grad, cpu[0].grad) and equal_bits(w.grad, cpu[1].grad)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w), function(x, w))
    rows = torch.func.vmap(lambda row: custom_fp.quantize(row, "e5m2"))(x.detach())
    assert torch.equal(rows, custom_fp.quantize(x.detach(), "e5m2"))


def test_mixed_devices_are_an_error():
    a, b = torch.ones(4, 4), torch.ones(4, 4, device="cuda")
    for call in (
        lambda: custom_fp.accumulate([a, b], "e5m2"),
        lambda: custom_fp.matmul(a, b, accumulator="e5m2"),
        lambda: custom_fp.quantize(a, "e5m2", out=b),
    ):
        with pytest.raises(ValueError, match=r"device|cuda"):
            call()
