"""Unusual memory layouts: results that overlap inputs, and views with torch's negation bit."""

import custom_fp
import pytest
import torch

FORMATS = ["e5m2", "mxfp8_e4m3", "linear_b64"]


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
    "scale_pow2": lambda b, _: custom_fp.scale_pow2(b[:-1], 3, out=b[1:]),
    "accumulate": lambda b, _: custom_fp.accumulate([b[:-1].clone(), b[:-1]], "e5m2", out=b[1:]),
    "encode": lambda b, _: custom_fp.encode(b[:500], "e5m2", out=b.view(torch.uint8)[2:502]),
    "decode": lambda b, _: custom_fp.decode(b.view(torch.uint8)[:500], "e5m2", out=b[:500]),
    "accumulate_packed": lambda b, _: custom_fp.accumulate_packed(
        [b.view(torch.uint8)[:800]], "e5m2", 800, out=b.view(torch.uint8)[8:808]
    ),
}


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *((call, name) for call in CALLS.values() for name in FORMATS),
        *((c, "e5m2") for c in SCALAR_CALLS.values()),
    ],
)
def test_out_that_overlaps_its_input_raises(call, name):
    data = torch.randint(0, 60, (4000,), dtype=torch.uint8)
    before = data.clone()
    with pytest.raises(RuntimeError, match="overlaps"):
        call(data.view(torch.float32), name)
    assert torch.equal(data, before)


@pytest.mark.parametrize("name", FORMATS)
def test_out_next_to_its_input_or_that_input_itself(name):
    b = torch.randn(1000)
    expected = custom_fp.quantize(b[:500], name)
    assert torch.equal(custom_fp.quantize(b[:500], name, out=b[500:]), expected)  # neighbors
    expected = custom_fp.quantize(b[::2], name)
    assert torch.equal(custom_fp.quantize(b[::2], name, out=b[1::2]), expected)  # in each other's holes
    assert torch.equal(custom_fp.quantize(b[::2], name, out=b[::2]), expected)
    whole = custom_fp.quantize(b, name)
    assert custom_fp.quantize(b, name, out=b.view(1000)) is not None and torch.equal(b, whole)
    assert custom_fp.quantize(b, name, out=b) is b


def negated(*shape):
    """Return a view with torch's negation bit, and the same values without it."""
    z = torch.complex(torch.zeros(shape), torch.randn(shape))
    assert z.conj().imag.is_neg()
    return z.conj().imag, -z.imag


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("name", FORMATS)
def test_a_view_with_the_negative_bit_keeps_its_sign(name, size):
    x, plain = negated(size)
    expected = custom_fp.quantize(plain, name)
    assert torch.equal(custom_fp.quantize(x, name), expected)
    assert torch.equal(custom_fp.pack(x, name), custom_fp.pack(plain, name))
    for ours, theirs in zip(custom_fp.encode(x, name), custom_fp.encode(plain, name), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(custom_fp.quantize(x, name, out=negated(size)[0]), expected)


def test_sums_and_products_of_views_with_the_negative_bit():
    x, plain = negated(3, 3)
    assert torch.equal(custom_fp.accumulate([x, x], "e5m2"), custom_fp.accumulate([plain] * 2, "e5m2"))
    assert torch.equal(custom_fp.scale_pow2(x, 2), plain * 4)
    expected = custom_fp.matmul(plain, plain, accumulator="e5m10")
    assert torch.equal(custom_fp.matmul(x, x, accumulator="e5m10"), expected)
