"""Integers with a scale and a zero point: against torch's own operators and observers, exact where they are, and the
torch reference on every instruction set."""

import math

import custom_fp
import pytest
import torch
from custom_fp import Affine, _native
from custom_fp.formats.names import parse, spelled
from custom_fp.scaled import arithmetic
from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver

NAMES = [
    "int8_affine",
    "int4_affine_b32",
    "int8_affine_channel",
    "int3_affine_column",
    "int2_affine_8x16",
    "int5_affine_b7",
]


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_reference(x, fmt, axis=None, **rule):
    out = torch.empty_like(x)
    arithmetic.backend.quantize(x, parse(fmt), custom_fp.Rule(**rule), out, axis)
    return out


@pytest.mark.parametrize("shift", [-5.0, 0.0, 0.3, 4.0])
def test_a_tensor_is_what_torch_makes_of_it(shift):
    """The range by torch's observer, the codes by quantize_per_tensor, the values by both of its ways."""
    x = normal(70, 50) + shift
    observer = MinMaxObserver(dtype=torch.quint8)
    observer(x)
    scale, zero = observer.calculate_qparams()
    theirs = torch.quantize_per_tensor(x, scale.item(), zero.item(), torch.quint8)
    codes, scales, zeros = custom_fp.encode(x, "int8_affine")
    assert (scales.item(), zeros.item()) == (scale.item(), zero.item())
    assert torch.equal(codes, theirs.int_repr())
    ours = custom_fp.quantize(x, "int8_affine")
    assert same(ours, theirs.dequantize() + 0.0)
    fake = torch.fake_quantize_per_tensor_affine(x, scale.item(), zero.item(), 0, 255)
    assert same(ours, fake + 0.0)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_channel_is_what_torch_makes_of_it(bits):
    x = normal(40, 33) * torch.logspace(-3, 4, 40)[:, None] + torch.linspace(-2, 2, 40)[:, None]
    levels = 2**bits - 1
    observer = PerChannelMinMaxObserver(ch_axis=0, dtype=torch.quint8, quant_min=0, quant_max=levels)
    observer(x)
    scale, zero = observer.calculate_qparams()
    theirs = torch.fake_quantize_per_channel_affine(x, scale, zero.to(torch.int32), 0, 0, levels)
    assert same(custom_fp.quantize(x, f"int{bits}_affine_channel"), theirs + 0.0)
    columns = custom_fp.quantize(x.t().contiguous(), f"int{bits}_affine_column")
    assert same(columns, theirs.t().contiguous() + 0.0)
    assert same(custom_fp.quantize(x.t(), f"int{bits}_affine_channel", axis=0), columns)


def test_a_group_is_what_torch_makes_of_its_rows():
    x = normal(6, 96)
    groups = x.view(-1, 32)
    observer = PerChannelMinMaxObserver(ch_axis=0, dtype=torch.quint8, quant_min=0, quant_max=15)
    observer(groups)
    scale, zero = observer.calculate_qparams()
    theirs = torch.fake_quantize_per_channel_affine(groups, scale, zero.to(torch.int32), 0, 0, 15)
    assert same(custom_fp.quantize(x, "int4_affine_b32", axis=-1), theirs.view(6, 96) + 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_the_reference_on_every_instruction_set(name):
    fmt = parse(name)
    x = normal(3, 37, 70) * torch.logspace(-30, 10, 70)
    x[0, 5] = 0.0
    x[1, 3, 9], x[2, 30, 17], x[2, :, 11], x[0, 8, 2:4] = (
        math.nan,
        -math.inf,
        1e-42,
        torch.tensor([3e38, -3e38]),
    )
    for isa in _native.isas():
        _native.use_isa(isa)
        for axis in (None, 0, 1, 2):
            for source in (x, x[2, :29, :7].contiguous().view(29, 7, 1)):
                expected = by_reference(source, fmt, axis)
                assert same(custom_fp.quantize(source, fmt, axis=axis), expected), (isa, axis)
                codes = custom_fp.encode(source, fmt, axis=axis)
                assert same(custom_fp.decode(codes, fmt, axis=axis), expected), (isa, axis)
                data = custom_fp.pack(source, fmt, axis=axis)
                assert data.numel() == fmt.packed_size(source.shape, axis)
                assert same(custom_fp.unpack(data, fmt, source.shape, axis=axis), expected)


def test_a_tensor_on_several_threads():
    x = normal(700_001) * 3 + 1
    threads = torch.get_num_threads()
    try:
        expected = by_reference(x, "int8_affine"), by_reference(x.view(-1, 1), "int4_affine_column")
        for number in (1, 3):
            torch.set_num_threads(number)
            assert same(custom_fp.quantize(x, "int8_affine"), expected[0])
            assert same(custom_fp.decode(custom_fp.encode(x, "int8_affine"), "int8_affine"), expected[0])
            assert same(custom_fp.quantize(x.view(-1, 1), "int4_affine_column"), expected[1])
    finally:
        torch.set_num_threads(threads)


def test_nothing_follows_flush_to_zero():
    x = normal(64, 300) * torch.logspace(-45, -36, 300)
    names = (*NAMES, "nf4_b64", "dynamic_map")

    def everything():
        return [
            result
            for name in names
            for axis in (0, 1)
            for result in (
                custom_fp.quantize(x, name, axis=axis),
                custom_fp.unpack(custom_fp.pack(x, name, axis=axis), name, x.shape, axis=axis),
            )
        ] + [custom_fp.hadamard(x, 16, seed=1, axis=axis) for axis in (0, 1)]

    expected = everything()
    try:
        torch.set_flush_denormal(True)
        found = everything()
    finally:
        torch.set_flush_denormal(False)
    assert all(map(same, found, expected))


def test_laws():
    x = normal(500) * 1e-12  # below the scale that torch's observers hold to
    for name in ("int8_affine", "int4_affine_b32"):
        once = custom_fp.quantize(x, name)
        assert once.abs().max() > 0 and (once[x == 0] == 0).all()
    whole = torch.arange(256.0) - 100  # its own codes
    assert same(custom_fp.quantize(whole, "int8_affine"), whole)
    assert same(custom_fp.quantize(torch.tensor([-0.0, 0.0]), "int8_affine"), torch.zeros(2))
    assert custom_fp.quantize(torch.tensor([1.0, math.inf, 2.0]), "int8_affine").isnan().all()
    positive = normal(64).abs() + 1
    assert custom_fp.encode(positive, "int8_affine")[2].item() == 0


def test_stochastic_rounding_is_unbiased_and_a_part_is_rounded_as_in_the_whole():
    x = torch.cat([torch.full((20_000,), 10.3), torch.tensor([0.0, 255.0])])
    drawn = custom_fp.quantize(x, "int8_affine", rounding="stochastic", seed=7)
    assert set(drawn[:20_000].tolist()) == {10.0, 11.0}
    assert drawn[:20_000].mean().item() == pytest.approx(10.3, abs=5 * 0.46 / 20_000**0.5)
    blocks = normal(64, 32)
    whole = custom_fp.quantize(blocks, "int4_affine_b32", rounding="stochastic", seed=7)
    part = custom_fp.quantize(blocks[3:], "int4_affine_b32", rounding="stochastic", seed=7, offset=96)
    assert same(part, whole[3:])
    down = custom_fp.quantize(torch.tensor([0.0, 1.9, 255.0]), "int8_affine", rounding="toward_zero")
    assert down.tolist() == [0.0, 1.0, 255.0]


def test_gradients_and_compilers():
    x = normal(4, 64).requires_grad_()
    custom_fp.quantize(x, "int4_affine_b32", axis=1).sum().backward()
    assert torch.equal(x.grad, torch.ones(4, 64))
    rows = torch.vmap(lambda row: custom_fp.quantize(row, "int8_affine"))(x.detach())
    assert same(rows, custom_fp.quantize(x.detach(), "int8_affine_channel"))
    along = torch.vmap(lambda row: custom_fp.quantize(row, "int4_affine_b32", axis=0), in_dims=1)(x.detach())
    assert same(along, custom_fp.quantize(x.detach().t().contiguous(), "int4_affine_b32", axis=1))
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda t: custom_fp.decode(custom_fp.encode(t, "int8_affine"), "int8_affine"),
        fullgraph=True,
        backend="aot_eager",
    )
    assert same(compiled(x.detach()), custom_fp.quantize(x.detach(), "int8_affine"))


def test_names():
    assert (
        parse("int8_affine_tensor").name == "int8_affine"
        and parse("int8_affine_row").name == "int8_affine_channel"
    )
    assert parse("int4_affine_b32").bits == 4 + 40 / 32 and parse("int8_affine").bits == 8
    assert parse("int2_affine_8x16").block == (8, 16)
    for fmt in (*map(parse, NAMES), Affine("mine", 6, (2, 3))):
        assert custom_fp.formats.names.read(spelled(fmt)) == fmt


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Affine("a", 9), "integers of 9 bits are not supported; allowed: 2 to 8 bits"),
        (lambda: Affine("a", 8, 0), "block is 0; allowed: a whole number of at least 1"),
        (lambda: Affine("a", 8, "all"), "block is 'all'"),
        (lambda: parse("int9_affine"), "unknown format 'int9_affine'; allowed: .*int8_affine"),
        (lambda: parse("int8_affine_b0"), "int8_affine_b0"),
        (lambda: custom_fp.quantize(torch.ones(3), "int8_affine_column"), "shape"),
        (lambda: custom_fp.decode(custom_fp.encode(torch.ones(3), "int8_affine")[:2], "int8_affine"),
         "decode requires codes, scales and zero points of int8_affine; got 2 tensors"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()
