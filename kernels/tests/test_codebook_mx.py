"""MX formats equal gfloat's block functions bit for bit. What gfloat leaves open is tested separately."""

import math

import custom_fp
import pytest
import torch
from custom_fp import ScaledFormat, _native
from scaled_in_torch import in_torch

gfloat = pytest.importorskip("gfloat", reason="gfloat is an optional oracle")
block = pytest.importorskip("gfloat.block")
formats = pytest.importorskip("gfloat.formats")

GFLOAT = {
    "mxfp8_e4m3": formats.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": formats.format_info_mxfp8_e5m2,
    "mxfp6_e3m2": formats.format_info_mxfp6_e3m2,
    "mxfp6_e2m3": formats.format_info_mxfp6_e2m3,
    "mxfp4": formats.format_info_mxfp4_e2m1,
    "mxint8": formats.format_info_mxint8,
}


LARGEST = torch.finfo(torch.float32).max


def blocks() -> torch.Tensor:
    """Random blocks of every magnitude, and blocks in which rounding, clamping and saturation meet."""
    g = torch.Generator().manual_seed(0)
    found = [torch.randn(32, generator=g) * 2.0**e for e in (*range(-150, 124, 23), 124, 0, 1)]
    ramp = torch.arange(-16, 16) / 8.0
    found += [ramp * 2.0**e for e in (-126, -140, 0, 100)]
    found += [torch.zeros(32), torch.full((32,), 2.0**-149), torch.full((32,), LARGEST)]
    found += [torch.full((32,), -1.9999999), torch.linspace(1.0, 2.0, 32).nextafter(torch.tensor(0.0))]
    found += [torch.cat([torch.tensor([LARGEST]), torch.logspace(-44, 30, 31)])]
    one = torch.zeros(32)
    one[7] = -(2.0**-127)
    return torch.stack([*found, one])


@pytest.mark.parametrize("name", GFLOAT)
def test_blocks_equal_gfloats(name):
    info, x_BxK = GFLOAT[name], blocks()
    ours = custom_fp.quantize(x_BxK, name)
    codes, scales = custom_fp.encode(x_BxK, name)
    for i, x in enumerate(x_BxK):
        vals = x.double().numpy()
        theirs = torch.from_numpy(block.quantize_block(info, vals, block.compute_scale_amax)).float()
        assert torch.equal(ours[i], theirs), (i, x[ours[i] != theirs], ours[i][ours[i] != theirs])
        scale = block.compute_scale_amax(info.etype.emax, vals)
        encoded = list(block.encode_block(info, scale, vals / scale))
        assert [scales[i].item(), *codes[i].tolist()] == encoded, i


@pytest.mark.parametrize("name", GFLOAT)
@pytest.mark.parametrize("shape", [(100,), (3, 32), (1,), (0,), ()], ids=str)
def test_bytes_and_short_blocks(name, shape):
    fmt = ScaledFormat.parse(name)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    rounded, data = custom_fp.quantize(x, name), custom_fp.pack(x, name)
    assert data.numel() == fmt.packed_size(x.numel()) == custom_fp.packed_size(x.numel(), name)
    assert torch.equal(custom_fp.unpack(data, name, x.shape), rounded)
    padded = torch.cat([x.reshape(-1), torch.zeros(-x.numel() % 32)])
    assert torch.equal(custom_fp.quantize(padded, name)[: x.numel()], rounded.reshape(-1))


@pytest.mark.parametrize("name", GFLOAT)
def test_a_block_with_nan_or_inf_is_nan_throughout(name):
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.ones(96)
        x[40] = bad
        rounded = custom_fp.quantize(x, name)
        assert rounded[32:64].isnan().all() and torch.equal(rounded[:32], x[:32])
        assert custom_fp.encode(x, name)[1].tolist()[1] == 255


def every_magnitude() -> torch.Tensor:
    """Values with all upper 16 bits there are, neighbours in size in one block; then blocks as gradients have them,
    and some with inf and NaN."""
    g = torch.Generator().manual_seed(2)
    upper = (
        torch.arange(1 << 16).repeat_interleave(3) & 0x7FFF | torch.randint(2, (3 << 16,), generator=g) << 15
    )
    lower = torch.tensor([0, 0x8000, 0]).repeat(1 << 16) + torch.randint(2, (3 << 16,), generator=g) * 0x7FFF
    patterns = (upper << 16 | lower).to(torch.int32).view(torch.float32)
    finite = patterns[patterns.isfinite()]
    spread = torch.randn(1 << 15, generator=g) * torch.exp2(
        torch.randint(-140, 100, (1 << 10, 1), generator=g)
    ).expand(-1, 32).reshape(-1)
    odd = torch.randn(320, generator=g)
    odd[[3, 70, 150, 151]] = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    return torch.cat([finite, spread, odd])


def results(x: torch.Tensor, name: str) -> list[torch.Tensor]:
    codes, scales = custom_fp.encode(x, name)
    data = custom_fp.pack(x, name)
    rows = custom_fp.quantize_rows(
        x[:1234].view(2, -1), ScaledFormat.parse(name)
    )  # 617: a short block at each end
    values = custom_fp.quantize(x, name), custom_fp.unpack(data, name, x.shape), rows
    decoded = custom_fp.decode((codes, scales), ScaledFormat.parse(name))
    return [codes, scales, data, *(v.view(torch.int32) for v in (*values, decoded))]


@pytest.mark.parametrize("name", GFLOAT)
def test_the_compiled_blocks_equal_torch_on_every_instruction_set(name, monkeypatch):
    x = every_magnitude()
    with monkeypatch.context() as m:
        in_torch(m)
        expected = [results(x[:n], name) for n in (len(x), 1241, 1234 + 32)]
    used = _native.isa()
    try:
        for isa in _native.isas():
            _native.use_isa(isa)
            for n, by_torch in zip((len(x), 1241, 1234 + 32), expected, strict=True):
                for ours, theirs in zip(results(x[:n], name), by_torch, strict=True):
                    assert torch.equal(ours, theirs), (isa, n)
    finally:
        _native.use_isa(used)


def test_the_result_may_be_changed_in_place():
    """As a ReLU with inplace=True does to what a Quantizer gives it."""
    layer = custom_fp.Quantizer(forward="mxfp8_e4m3")
    x = torch.randn(4, 64, requires_grad=True)
    torch.nn.functional.relu(layer(x), inplace=True).sum().backward()
    assert torch.equal(x.grad, (x > 0).float())
    out = x.detach().clone()
    assert custom_fp.quantize(out, "mxfp4", out=out) is out and torch.equal(
        out, custom_fp.quantize(x, "mxfp4")
    )


def test_names_and_bits():
    assert {name: ScaledFormat.parse(name).bits for name in GFLOAT} == {
        "mxfp8_e4m3": 8.25,
        "mxfp8_e5m2": 8.25,
        "mxfp6_e3m2": 6.25,
        "mxfp6_e2m3": 6.25,
        "mxfp4": 4.25,
        "mxint8": 8.25,
    }
    assert ScaledFormat.parse("mxfp4_e2m1").name == "mxfp4"
    with pytest.raises(ValueError, match="unknown scaled format 'mxfp5'; allowed: mxfp8_e4m3"):
        ScaledFormat.parse("mxfp5")
