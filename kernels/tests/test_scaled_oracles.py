"""Formats with scales compared with torchao's CPU code, or its stored results without it, and with gfloat."""

import json
from pathlib import Path

import custom_fp
import pytest
import torch
from custom_fp import parse

KNOWN = json.loads((Path(__file__).parent / "scaled_vectors.json").read_text())


def read(text: str, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("name", KNOWN["formats"])
def test_known_answers(name):
    x = read(KNOWN["values"], torch.float32).view(KNOWN["shape"])
    answer = KNOWN["formats"][name]
    codes, scales, *t = custom_fp.encode(x, name, axis=1)
    assert torch.equal(scales.view(-1), read(answer["scales"]))
    if t:
        assert torch.equal(t[0].view(1), read(answer["tensor_scale"], torch.float32))
    assert torch.equal(codes.view(-1), read(answer["codes"]))


def tensors() -> list[torch.Tensor]:
    """Above 2**-6 of the largest scale in every block, where torchao's own limit does not bind."""
    g = torch.Generator().manual_seed(0)
    found = []
    for scale in (1.0, 1e-4, 3e5, 1e-30, 1e30):
        x = torch.randn(64, 128, generator=g) * torch.exp(torch.randn(64, 1, generator=g))
        found.append(x * scale)
    near = custom_fp.quantize(found[0], "nvfp4") * torch.tensor([1.0, 1.25, 0.75, 1.125] * 32)
    return [*found, near, found[0].bfloat16().float()]


@pytest.fixture(scope="module")
def nvfp4_tensor():
    return pytest.importorskip(
        "torchao.prototype.mx_formats.nvfp4_tensor", reason="torchao is an optional oracle"
    )


@pytest.fixture(scope="module")
def mx_tensor():
    return pytest.importorskip(
        "torchao.prototype.mx_formats.mx_tensor", reason="torchao is an optional oracle"
    )


def one_a_byte(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def test_nvfp4_equals_torchao(nvfp4_tensor):
    for x in tensors():
        t = nvfp4_tensor.per_tensor_amax_to_scale(x.abs().max())
        scales, data = nvfp4_tensor.nvfp4_quantize(x, 16, t)
        codes, ours, our_t = custom_fp.encode(x, "nvfp4", axis=-1)
        is_held = scales.view(torch.uint8) == 8  # at torchao's smallest scale, 2**-6
        assert is_held.sum() < 8
        assert torch.equal(our_t, t) and torch.equal(ours[~is_held], scales.view(torch.uint8)[~is_held])
        free = ~is_held.repeat_interleave(16, 1)
        assert torch.equal(codes[free], one_a_byte(data)[free])
        theirs = nvfp4_tensor.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=t).dequantize(torch.float32)
        assert torch.equal(custom_fp.quantize(x, "nvfp4", axis=-1)[free], theirs[free])


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
def test_mx_equals_torchao(rule, mx_tensor):
    kinds = {
        "mxfp4": torch.float4_e2m1fn_x2,
        "mxfp8_e4m3": torch.float8_e4m3fn,
        "mxfp8_e5m2": torch.float8_e5m2,
    }
    mode = mx_tensor.ScaleCalculationMode[rule.upper()]
    for name, dtype in kinds.items():
        for x in tensors():
            scales, data = mx_tensor.to_mx(x, dtype, 32, mode)
            codes, ours = custom_fp.encode(x, parse(f"{name}_{rule}"), axis=-1)
            assert torch.equal(ours, scales.view(torch.uint8)), name
            theirs = one_a_byte(data) if name == "mxfp4" else data.view(torch.uint8)
            assert torch.equal(codes, theirs), name


def blocks() -> torch.Tensor:
    """Return random blocks of every magnitude, and blocks in which rounding, clamping and saturation meet."""
    g, largest = torch.Generator().manual_seed(0), torch.finfo(torch.float32).max
    found = [torch.randn(32, generator=g) * 2.0**e for e in (*range(-150, 124, 23), 124, 0, 1)]
    found += [torch.arange(-16, 16) / 8.0 * 2.0**e for e in (-126, -140, 0, 100)]
    found += [torch.zeros(32), torch.full((32,), 2.0**-149), torch.full((32,), largest)]
    found += [torch.full((32,), -1.9999999), torch.linspace(1.0, 2.0, 32).nextafter(torch.tensor(0.0))]
    found += [torch.cat([torch.tensor([largest]), torch.logspace(-44, 30, 31)])]
    return torch.stack([*found, -(2.0**-127) * (torch.arange(32) == 7).float()])


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8"])
def test_mx_equals_gfloat(name):
    gfloat = pytest.importorskip("gfloat.block", reason="gfloat is an optional oracle")
    formats = pytest.importorskip("gfloat.formats")
    info, x_BxK = getattr(formats, f"format_info_{name}{'_e2m1' * (name == 'mxfp4')}"), blocks()
    ours, (codes, scales) = custom_fp.quantize(x_BxK, name), custom_fp.encode(x_BxK, name)
    for i, x in enumerate(x_BxK.double().numpy()):
        theirs = torch.from_numpy(gfloat.quantize_block(info, x, gfloat.compute_scale_amax)).float()
        assert torch.equal(ours[i], theirs), i
        scale = gfloat.compute_scale_amax(info.etype.emax, x)
        encoded = list(gfloat.encode_block(info, scale, x / scale))
        assert [scales[i].item(), *codes[i].tolist()] == encoded, i
