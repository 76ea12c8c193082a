"""Formats with scales compared with torchao's CPU code, or with its stored results if torchao is not installed."""

import json
from pathlib import Path

import custom_fp
import pytest
import torch
from custom_fp.formats.names import parse

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


def test_nvfp4_equals_torchaos(nvfp4_tensor):
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
def test_mx_equals_torchaos(rule, mx_tensor):
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
