"""Integers with a scale and a zero point equal torch's operators and observers, where these are exact."""

import math

import custom_fp
import numpy as np
import pytest
import torch
from tensors import normal, same_bits
from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver


def by_channel(x, levels):
    """Return torch's result with a scale and a zero point for each row. Its -0 becomes 0."""
    observer = PerChannelMinMaxObserver(ch_axis=0, dtype=torch.quint8, quant_min=0, quant_max=levels)
    observer(x)
    scale, zero = observer.calculate_qparams()
    return torch.fake_quantize_per_channel_affine(x, scale, zero.to(torch.int32), 0, 0, levels) + 0.0


@pytest.mark.parametrize("shift", [-5.0, 0.0, 0.3, 4.0])
def test_a_tensor_equals_torch(shift):
    """The range by torch's observer, the codes by quantize_per_tensor, the values by both of its ways."""
    x, observer = normal(70, 50) + shift, MinMaxObserver(dtype=torch.quint8)
    observer(x)
    scale, zero = observer.calculate_qparams()
    theirs = torch.quantize_per_tensor(x, scale.item(), zero.item(), torch.quint8)
    codes, scales, zeros = custom_fp.encode(x, "int8_affine")
    assert (scales.item(), zeros.item()) == (scale.item(), zero.item())
    assert torch.equal(codes, theirs.int_repr())
    ours = custom_fp.quantize(x, "int8_affine")
    assert same_bits(ours, theirs.dequantize() + 0.0)
    fake = torch.fake_quantize_per_tensor_affine(x, scale.item(), zero.item(), 0, 255)
    assert same_bits(ours, fake + 0.0)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_channels_and_groups_equal_torch(bits):
    x = normal(40, 33) * torch.logspace(-3, 4, 40)[:, None] + torch.linspace(-2, 2, 40)[:, None]
    theirs, columns = by_channel(x, 2**bits - 1), x.t().contiguous()
    assert same_bits(custom_fp.quantize(x, f"int{bits}_affine_channel"), theirs)
    assert same_bits(custom_fp.quantize(columns, f"int{bits}_affine_column"), theirs.t().contiguous())
    assert same_bits(
        custom_fp.quantize(columns, f"int{bits}_affine_channel", axis=0), theirs.t().contiguous()
    )
    groups = normal(18, 32)
    ours = custom_fp.quantize(groups.view(6, 96), f"int{bits}_affine_b32", axis=-1)
    assert same_bits(ours.view(18, 32), by_channel(groups, 2**bits - 1))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", ["b32", "8x16"])
def test_blocks_of_positive_values_use_all_codes(bits, block):
    name, x = f"int{bits}_affine_{block}", normal(16, 32, seed=5).abs() + 0.5
    codes, scales, zeros = custom_fp.encode(x, name)
    cut = x.view(16, 1, 32) if block == "b32" else x.view(2, 8, 2, 16).transpose(1, 2).reshape(4, 1, 128)
    highest = cut.amax((1, 2)).numpy() / np.float32(2**bits - 1)
    assert scales.view(-1).tolist() == highest.tolist() and zeros.count_nonzero() == 0
    assert codes.max() == 2**bits - 1


def test_laws():
    x = normal(500) * 1e-12  # below the smallest scale of torch's observers
    for name in ("int8_affine", "int4_affine_b32"):
        once = custom_fp.quantize(x, name)
        assert once.abs().max() > 0 and (once[x == 0] == 0).all()
    whole = torch.arange(256.0) - 100  # its own codes
    assert same_bits(custom_fp.quantize(whole, "int8_affine"), whole)
    assert same_bits(custom_fp.quantize(torch.tensor([-0.0, 0.0]), "int8_affine"), torch.zeros(2))
    assert custom_fp.quantize(torch.tensor([1.0, math.inf, 2.0]), "int8_affine").isnan().all()
    down = custom_fp.quantize(torch.tensor([0.0, 1.9, 255.0]), "int8_affine", rounding="toward_zero")
    assert down.tolist() == [0.0, 1.0, 255.0]
