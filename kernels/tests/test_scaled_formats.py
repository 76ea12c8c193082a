"""Scaled formats: the compiled code against torch's on every instruction set, and both against exact rationals, over
all scales and the boundaries between elements."""

import math
from itertools import pairwise

import custom_fp
import pytest
import scaled_oracle
import torch
from custom_fp import BlockFormat, ScaledFormat, _native
from custom_fp.formats.names import parse
from custom_fp.scaled.scales import values as scale_values
from scaled_in_torch import in_torch

FORMATS = [
    "mxfp8_e5m2",
    "mxfp6_e2m3",
    "mxfp4",
    "mxint8",
    "mxint4",
    "mxfp4_ceil",
    "mxfp4_nearest",
    "mxfp8_e4m3_even",
    "mxfp4_rceil",
    "mxfp4_amax",
    "mxfp4_b7",
    "nvfp4",
    "nvfp4_2d",
    "nvint4",
    "nvfp4_4over6",
    "nvfp4_2d_4over6",
    "nvfp4_b5_4over6",
    "nvfp4_5x3_4over6",
    "nvfp4_3x24_4over6",
    "nvfp4_ue5m3",
    "nvfp4_1level",
    "nvfp4_e8m0",
    "nvfp4_fp32",
    "nvfp4_margin1",
    "nvfp4_5x3",
    "nvfp4_row",
    "fp8_tensor",
    "fp8_row",
    "fp8_column",
    "fp8_b128",
    "fp8_block128",
    "fp8_e5m2_tensor",
    "int8_channel",
    "int8_tensor",
    "int4_b32",
]
OWN = [
    BlockFormat("a", "e4m3b-100", (3, 5)),
    BlockFormat("b", "e3m0", 4, "fp32"),
    BlockFormat("c", "e1m2", 9, "ue5m3", tensor_scale="fp32"),
    BlockFormat("d", "int3", 16, "e8m0", "ceil"),
]
ROUNDINGS = ("nearest_even", "toward_zero", "stochastic")


def tensor(*shape: int) -> torch.Tensor:
    """Rows of every magnitude, zeros, NaN and inf."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=g)
    x *= torch.exp2(torch.randint(-140, 100, (shape[0], *[1] * (len(shape) - 1)), generator=g).float())
    flat = x.view(-1)
    if (n := flat.numel()) > 500:
        flat[5], flat[7], flat[n // 2], flat[n // 3] = 0.0, -0.0, math.inf, math.nan
        flat[n // 4 : n // 4 + 40] = 0.0
    return x


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(*(x.view(torch.int32) if x.dtype is torch.float32 else x for x in (a, b)))


def everything(x: torch.Tensor, fmt: ScaledFormat, axis: int | None) -> list[torch.Tensor]:
    rules = [{"rounding": rounding, "seed": 3, "offset": 1001} for rounding in ROUNDINGS]
    found = [custom_fp.quantize(x, fmt, axis=axis, **rule) for rule in rules]
    encoded = custom_fp.encode(x, fmt, axis=axis)
    data = custom_fp.pack(x, fmt, axis=axis)
    assert data.numel() == custom_fp.packed_size(x.shape, fmt, axis=axis)
    for back in (custom_fp.decode(encoded, fmt, axis=axis), custom_fp.unpack(data, fmt, x.shape, axis=axis)):
        assert same(back, found[0])
    return [*found, *encoded, data, custom_fp.pack(x, fmt, axis=axis, **rules[2])]


@pytest.mark.parametrize("fmt", [*FORMATS, *OWN], ids=str)
def test_the_compiled_code_equals_torch_along_every_axis_on_every_instruction_set(fmt, monkeypatch):
    fmt = parse(fmt)
    cases = [
        (tensor(*shape), axis) for shape in ((3, 35, 34), (40, 33)) for axis in (None, *range(len(shape)))
    ]
    cases += [(tensor(1025, 3), 0), (tensor(2, 0, 3), 2), (tensor(1, 1), 0)]
    with monkeypatch.context() as m:
        in_torch(m)
        expected = [everything(x, fmt, axis) for x, axis in cases]
    used = _native.isa()
    try:
        for isa in _native.isas():
            _native.use_isa(isa)
            for (x, axis), by_torch in zip(cases, expected, strict=True):
                for i, (ours, theirs) in enumerate(zip(everything(x, fmt, axis), by_torch, strict=True)):
                    assert same(ours, theirs), (isa, x.shape, axis, i)
    finally:
        _native.use_isa(used)


@pytest.mark.parametrize("name", ["nvfp4", "nvint4", "nvfp4_4over6", "nvfp4_2d_4over6"])
@pytest.mark.parametrize("axis", [0, 1])
def test_so_many_that_some_need_the_second_half_of_their_random_bits(name, axis, monkeypatch):
    """The first 16 bits leave about 2**-15 of all open: some ten of these."""
    x = torch.randn(1000, 352, generator=torch.Generator().manual_seed(0))
    how = {"axis": axis, "rounding": "stochastic", "seed": 7, "offset": 2**40 + 5}
    ours = custom_fp.quantize(x, name, **how)
    with monkeypatch.context() as m:
        in_torch(m)
        assert same(ours, custom_fp.quantize(x, name, **how))


@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4_4over6", "fp8_tensor", "int8_channel", "mxfp4_b300001", "nvfp4_2d"]
)
def test_threads_change_nothing(name):
    """Blocks longer than a thread's share, and many small ones."""
    x = torch.randn(3, 300_001, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = everything(x, parse(name), None)
        torch.set_num_threads(2)
        for ours, theirs in zip(everything(x, parse(name), None), expected, strict=True):
            assert same(ours, theirs)
    finally:
        torch.set_num_threads(threads)


# ---- all scales, all boundaries


def boundaries(fmt: ScaledFormat) -> torch.Tensor:
    """Blocks for each scale: every element, every middle between two, and its neighbours, times the scale; each block
    begins with what makes that its scale."""
    known = [float(value) for value in scaled_oracle.elements_of(fmt)]
    middles = [(a + b) / 2 for a, b in pairwise(known)]
    exact = torch.tensor([*known, *middles])
    near = torch.cat([exact, exact.nextafter(torch.tensor(math.inf)), exact.nextafter(torch.tensor(0.0))])
    near = torch.cat([near, -near])
    length = fmt.block - 1
    near = torch.nn.functional.pad(near, (0, -near.numel() % length)).view(-1, length)
    blocks = torch.cat([torch.full((near.shape[0], 1), fmt.element.max), near], 1)
    codes = torch.arange(fmt.scale.format.nan_code) if fmt.scale_bits == 8 else torch.arange(-120, 100).exp2()
    scales = scale_values(fmt.scale.format, codes.to(torch.uint8) if fmt.scale_bits == 8 else codes)
    scales = scales[scales > 0]
    found = (blocks[None] * scales[:, None, None]).view(-1, fmt.block)
    return found[found.isfinite().all(1)]  # the largest scales leave float32's range


@pytest.mark.parametrize(
    "name",
    [
        "nvfp4",
        "nvfp4_1level",
        "nvfp4_ue5m3",
        "nvint4",
        "nvfp4_4over6",
        "mxfp4",
        "mxfp4_ceil",
        "mxfp4_even",
        "mxfp4_nearest",
        "mxfp4_rceil",
        "mxfp6_e3m2",
        "mxfp8_e4m3_even",
        "mxint8",
        "mxint4_rceil",
        "fp8_b128",
        "int8_b128",
        "int4_b32",
    ],
)
def test_every_scale_and_every_boundary(name, monkeypatch):
    fmt = parse(name)
    x = boundaries(fmt)
    assert x.shape[0] >= 100
    got = custom_fp.quantize(x, fmt, axis=1)
    codes, scales, *_ = custom_fp.encode(x, fmt, axis=1)
    if fmt.scale_bits == 8 and "4over6" not in name:
        assert len(set(scales.view(-1).tolist())) >= fmt.scale.format.nan_code - 12  # all but float32's ends
    with monkeypatch.context() as m:
        in_torch(m)
        assert same(custom_fp.quantize(x, fmt, axis=1), got)
        assert same(custom_fp.encode(x, fmt, axis=1)[0], codes)
    t = scaled_oracle.tensor_scale(fmt, x.abs().max().item()) if fmt.has_tensor_scale else None
    for i in range(0, x.shape[0], max(1, x.shape[0] * fmt.block // 2500)):
        for ours, exact in zip(got[i].tolist(), scaled_oracle.block(fmt, x[i].tolist(), t), strict=True):
            assert ours == exact and math.copysign(1, ours) == math.copysign(1, exact), i


@pytest.mark.parametrize("name", [name for name in FORMATS if isinstance(parse(name).block, int)])
def test_random_blocks_equal_exact_rationals(name):
    fmt, g = parse(name), torch.Generator().manual_seed(1)
    x = torch.randn(12, fmt.block, generator=g) * torch.exp2(torch.randint(-20, 20, (12, 1), generator=g))
    if not fmt.has_tensor_scale:
        x = torch.cat([x, x[:3] * 2.0**-120, x[:3] * 2.0**100])  # past the ends of the scales
    t = scaled_oracle.tensor_scale(fmt, x.abs().max().item()) if fmt.has_tensor_scale else None
    for ours, row in zip(custom_fp.quantize(x, fmt, axis=1).tolist(), x.tolist(), strict=True):
        assert ours == scaled_oracle.block(fmt, row, t)


# ---- what is said of them


def test_4over6_takes_the_smaller_error():
    x = torch.randn(512, 16, generator=torch.Generator().manual_seed(0))
    fmt = parse("nvfp4_4over6")
    scales = custom_fp.encode(x, fmt, axis=1)[1].view(-1).to(torch.int32)
    at_4 = (x.abs().amax(1) / 4 / (x.abs().max() / (6 * 256))).to(torch.float8_e4m3fn).view(torch.uint8)
    chosen = scales == at_4
    assert 0.2 < chosen.float().mean() < 0.8
    errors = [(custom_fp.quantize(x, name, axis=1) - x).square().mean() for name in ("nvfp4", fmt)]
    assert errors[1] < 0.9 * errors[0]


def test_a_block_with_nan_is_nan_and_the_tensors_scale_is_of_what_is_finite():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    bad = x.clone()
    bad[1, 17], bad[2, 40] = math.nan, -math.inf
    for name in ("nvfp4", "nvint4", "nvfp4_4over6", "fp8_row", "nvfp4_2d"):
        got, expected = custom_fp.quantize(bad, name, axis=1), custom_fp.quantize(x, name, axis=1)
        is_nan = got.isnan()
        assert is_nan[1, 16:32].all() and is_nan[2, 32:48].all() and not is_nan.all()
        if name in ("nvfp4", "nvint4", "nvfp4_4over6"):
            assert is_nan.sum() == 32 and torch.equal(got[~is_nan], expected[~is_nan])
    codes, scales, t = custom_fp.encode(bad, "nvfp4", axis=1)
    assert scales[1, 1] == scales[2, 2] == 127 and codes[1, 16:32].sum() == 0 and t.isfinite()


def test_zeros_and_the_smallest_values():
    for name in ("nvfp4", "fp8_tensor", "int8_channel", "nvfp4_4over6", "mxfp4_rceil"):
        zeros = torch.tensor([[0.0, -0.0] * 16])
        got = custom_fp.quantize(zeros, name)
        keeps = parse(name).has_negative_zero
        assert torch.equal(
            torch.signbit(got), torch.signbit(zeros) if keeps else torch.zeros(1, 32, dtype=bool)
        )
        tiny = torch.full((2, 16), 2.0**-149)
        assert custom_fp.quantize(tiny, name).isfinite().all()


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_channel"])
def test_stochastic_rounding_is_of_an_elements_index_and_has_no_bias(name):
    x = torch.full((1, 64), 0.3)
    x[:, 0] = 5.0  # the scale of the first block
    rule = {"rounding": "stochastic", "axis": 1}
    many = torch.stack([custom_fp.quantize(x, name, seed=seed, **rule) for seed in range(2000)])
    assert many[:, 0, 1].unique().numel() == 2
    spread = many[:, 0, 1].max() - many[:, 0, 1].min()
    assert (many[:, 0, 1].mean() - 0.3).abs() < 4 * spread / 2 / math.sqrt(2000)
    y = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    whole = custom_fp.quantize(y, "mxfp4", seed=5, **rule)
    part = custom_fp.quantize(y[3:], "mxfp4", seed=5, offset=3 * 64, **rule)
    assert torch.equal(whole[3:], part)


def test_compiled_and_vmapped():
    x = torch.randn(4, 33, 6)
    for name in ("nvfp4", "int8_channel", "nvfp4_2d"):
        expected = torch.stack([custom_fp.quantize(each, name, axis=0) for each in x])
        one = lambda x, name=name: custom_fp.quantize(x, name, axis=0)  # noqa: E731
        assert torch.equal(torch.func.vmap(one)(x), expected)

    def there_and_back(x):
        encoded, data = custom_fp.encode(x, "nvfp4", axis=-2), custom_fp.pack(x, "nvfp4", axis=-2)
        return (
            custom_fp.quantize(x, "nvfp4", axis=1, rounding="stochastic", seed=1),
            custom_fp.decode(encoded, "nvfp4", axis=-2),
            custom_fp.unpack(data, "nvfp4", x.shape, axis=-2),
        )

    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    for got, expected in zip(compiled(x), there_and_back(x), strict=True):
        assert torch.equal(got, expected)
