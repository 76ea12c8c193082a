"""CUDA kernels on a GPU return the bits of the CPU for large and unaligned tensors, on streams and in graphs.

test_backends.py and test_accumulators.py compare every operator, rounding and kind of format.

pytest -m gpu kernels/tests        (scripts/gpu_check.sh runs this and the benchmarks)
"""

from itertools import product

import custom_fp
import pytest
import torch
from custom_fp.rounding import Rounding
from tensors import bit_patterns, normal, same_bits, specials

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def equal_bits(on_gpu, on_cpu):
    return same_bits(on_gpu.cpu(), on_cpu)


def test_backend():
    assert custom_fp.backend("cuda") == "cuda"


@pytest.mark.parametrize("fmt", ["e5m2", "e3m0", "bf16", "fp32", "e4m3fnuz", "ue5m6", "posit8"])
def test_large_tensors_of_every_dtype(fmt):
    x = torch.cat([bit_patterns(200_000), *(normal(50_000) * s for s in (1, 1e-6, 1e30, 1e-38)), specials()])[
        :-1
    ]
    for dtype, rounding in product((torch.float32, torch.float64, torch.bfloat16, torch.float16), Rounding):
        kwargs = {"rounding": rounding, "seed": 2**40 + 7, "offset": 100}
        y = x.to(dtype)
        assert equal_bits(custom_fp.quantize(y.cuda(), fmt, **kwargs), custom_fp.quantize(y, fmt, **kwargs))
        assert equal_bits(custom_fp.pack(y.cuda(), fmt, **kwargs), custom_fp.pack(y, fmt, **kwargs))
    terms = [x.roll(i) for i in range(5)]
    payloads = [custom_fp.pack(term, fmt) for term in terms]
    for kahan, rounding in product((False, True), Rounding):
        how = {"kahan": kahan, "rounding": rounding, "seed": -5, "offset": 1001}
        got = custom_fp.accumulate([term.cuda() for term in terms], fmt, **how)
        assert equal_bits(got, custom_fp.accumulate(terms, fmt, **how))
        got = custom_fp.accumulate_packed([data.cuda() for data in payloads], fmt, len(x), **how)
        assert equal_bits(got, custom_fp.accumulate_packed(payloads, fmt, len(x), **how))
    for size in (16, 4096, 8192):
        got = custom_fp.hadamard(x.cuda(), size, seed=-7, inverse=True)
        assert equal_bits(got, custom_fp.hadamard(x, size, seed=-7, inverse=True))


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 63, 64, 65, 1023, 4099])
def test_unaligned_addresses_and_odd_lengths(offset, n):
    base = torch.randn(5000)
    x, x_gpu = base[offset : offset + n], base.cuda()[offset : offset + n]
    for rounding in Rounding:
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
