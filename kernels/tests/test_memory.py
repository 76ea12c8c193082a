"""Unusual memory layouts: results that overlap inputs, views with torch's negation bit, and seeds of 64 bits."""

import custom_fp
import pytest
import torch

FORMATS = ["e5m2", "mxfp8_e4m3", "linear_b64"]


def halves(size=1000):
    """Bytes, and the float32 that they are."""
    data = torch.randint(0, 60, (4 * size,), dtype=torch.uint8)
    return data, data.view(torch.float32)


CALLS = {
    "quantize": lambda b, name: custom_fp.quantize(b[:-1], name, out=b[1:]),
    "quantize behind": lambda b, name: custom_fp.quantize(b[1:], name, out=b[:-1]),
    "quantize transposed": lambda b, name: custom_fp.quantize(
        b[:900].view(30, 30), name, out=b[:900].view(30, 30).t()
    ),
    "pack": lambda b, name: custom_fp.pack(
        b[:800], name, out=b.view(torch.uint8)[4 : 4 + custom_fp.packed_size(800, name)]
    ),
    "unpack": lambda b, name: custom_fp.unpack(
        b.view(torch.uint8)[: custom_fp.packed_size(800, name)], name, (800,), out=b[100:900]
    ),
}
SCALAR_CALLS = {
    "scale_pow2": lambda b: custom_fp.scale_pow2(b[:-1], 3, out=b[1:]),
    "accumulate": lambda b: custom_fp.accumulate([b[:-1].clone(), b[:-1]], "e5m2", out=b[1:]),
    "encode": lambda b: custom_fp.encode(b[:500], "e5m2", out=b.view(torch.uint8)[2:502]),
    "decode": lambda b: custom_fp.decode(b.view(torch.uint8)[:500], "e5m2", out=b[:500]),
    "accumulate_packed": lambda b: custom_fp.accumulate_packed(
        [b.view(torch.uint8)[:800]], "e5m2", 800, out=b.view(torch.uint8)[8:808]
    ),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("call", CALLS)
def test_out_that_overlaps_its_input_raises(call, name):
    data, b = halves()
    before = data.clone()
    with pytest.raises(RuntimeError, match="overlaps"):
        CALLS[call](b, name)
    assert torch.equal(data, before)


@pytest.mark.parametrize("call", SCALAR_CALLS)
def test_out_that_overlaps_its_input_raises_in_every_operator(call):
    with pytest.raises(RuntimeError, match="overlaps"):
        SCALAR_CALLS[call](halves()[1])


@pytest.mark.parametrize("name", FORMATS)
def test_out_beside_its_input_or_that_input_itself(name):
    b = torch.randn(1000)
    expected = custom_fp.quantize(b[:500], name)
    assert torch.equal(custom_fp.quantize(b[:500], name, out=b[500:]), expected)  # neighbours
    expected = custom_fp.quantize(b[::2], name)
    assert torch.equal(custom_fp.quantize(b[::2], name, out=b[1::2]), expected)  # in each other's holes
    assert torch.equal(custom_fp.quantize(b[::2], name, out=b[::2]), expected)
    whole = custom_fp.quantize(b, name)
    assert custom_fp.quantize(b, name, out=b.view(1000)) is not None and torch.equal(b, whole)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("name", FORMATS)
def test_a_view_with_the_negative_bit_keeps_its_sign(name, size):
    z = torch.complex(torch.zeros(size), torch.randn(size))
    x, plain = z.conj().imag, -z.imag
    assert x.is_neg()
    assert torch.equal(custom_fp.quantize(x, name), custom_fp.quantize(plain, name))
    assert torch.equal(custom_fp.pack(x, name), custom_fp.pack(plain, name))
    for ours, theirs in zip(custom_fp.encode(x, name), custom_fp.encode(plain, name), strict=True):
        assert torch.equal(ours, theirs)
    out = torch.complex(torch.zeros(size), torch.zeros(size)).conj().imag
    assert out.is_neg()
    assert torch.equal(custom_fp.quantize(x, name, out=out), custom_fp.quantize(plain, name))


def test_sums_and_products_of_views_with_the_negative_bit():
    z = torch.complex(torch.zeros(3, 3), torch.randn(3, 3))
    x, plain = z.conj().imag, -z.imag
    assert torch.equal(custom_fp.accumulate([x, x], "e5m2"), custom_fp.accumulate([plain] * 2, "e5m2"))
    assert torch.equal(custom_fp.scale_pow2(x, 2), plain * 4)
    assert torch.equal(
        custom_fp.matmul(x, x, accumulator="e5m10"), custom_fp.matmul(plain, plain, accumulator="e5m10")
    )


SEEDED = {
    "quantize": lambda x, seed: custom_fp.quantize(x, "e5m2", rounding="stochastic", seed=seed),
    "pack": lambda x, seed: custom_fp.pack(x, "e5m2", rounding="stochastic", seed=seed),
    "accumulate": lambda x, seed: custom_fp.accumulate([x, x], "e5m2", rounding="stochastic", seed=seed),
    "accumulate_packed": lambda x, seed: custom_fp.accumulate_packed(
        [custom_fp.pack(x, "e5m2")] * 2, "e5m2", x.numel(), rounding="stochastic", seed=seed
    ),
}


@pytest.mark.parametrize("operator", SEEDED)
def test_seeds_have_64_bits(operator):
    call, x = SEEDED[operator], torch.randn(100)
    assert torch.equal(call(x, 2**64 - 1), call(x, -1)) and torch.equal(call(x, 2**63), call(x, -(2**63)))
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=r"allowed: -2\*\*63 to 2\*\*64 - 1"):
            call(x, seed)
    with pytest.raises(TypeError, match=r"seed is 1\.5"):
        call(x, 1.5)


def test_a_large_seed_of_a_recorded_or_compiled_draw():
    x = torch.randn(100)
    expected = SEEDED["quantize"](x, 2**64 - 2)
    assert torch.equal(SEEDED["quantize"](x.clone().requires_grad_(), 2**64 - 2), expected)
    compiled = torch.compile(lambda x: SEEDED["quantize"](x, 2**64 - 2), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), expected)
