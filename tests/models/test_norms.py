import math

import pytest
import torch
from torch import nn

from cpdrun.models.normed.norms import EvoNormS0, RangeBN, RangeEvoNorm, range_deviation


def images(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3 + 1


def test_range_deviation_estimates_that_of_gaussian_values():
    """The constant is that of large n: of the range, 6.5 deviations of 1,000 values and 4.8 of 64, it makes .94 and .9
    of one; a piece's range varies by a tenth, the mean of 16 or 250 by a few hundredths."""
    x = images(8, 16000)
    for chunks, tolerance in ((16, 0.12), (250, 0.15)):
        torch.testing.assert_close(range_deviation(x, chunks), x.std(dim=1), rtol=tolerance, atol=0)


def test_the_deviation_of_a_small_row():
    x = torch.tensor([[0.0, 4.0, 1.0, 3.0]])
    constant = 0.175 * (1 + math.sqrt(math.pi * math.log(4)))
    # chunks (0, 4) and (1, 3): ranges 4 and 2, their mean 3
    expected = 3 * constant / math.sqrt(2 * math.log(2))
    assert range_deviation(x, 2).item() == pytest.approx(expected, rel=1e-6)
    assert range_deviation(x, 3).item() == pytest.approx(4 * constant / math.sqrt(2 * math.log(4)), rel=1e-6)


def test_range_bn_normalizes_by_channel_and_evaluates_with_running_statistics():
    x, norm = images(32, 4, 8, 8), RangeBN(4, chunks=16, momentum=1.0, eps=0.0)
    y = norm(x)
    std = range_deviation(x.transpose(0, 1).flatten(1), 16)
    expected = (x - x.mean(dim=(0, 2, 3), keepdim=True)) / std[:, None, None]
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm.eval()(x), y, rtol=1e-5, atol=1e-5)


def test_evonorm_s0_follows_its_formula():
    x, norm = images(2, 6, 5, 5), EvoNormS0(6, groups=3, eps=1e-5)
    nn.init.normal_(norm.v)
    expected = torch.empty_like(x)
    for b in range(2):
        for g in range(3):
            part = x[b, 2 * g : 2 * g + 2]
            std = (part.var(unbiased=False) + 1e-5).sqrt()
            expected[b, 2 * g : 2 * g + 2] = part * torch.sigmoid(norm.v[2 * g : 2 * g + 2] * part) / std
    torch.testing.assert_close(norm(x), expected)


def test_range_evonorm_is_evonorm_with_a_range_and_a_hard_sigmoid():
    x, norm = images(2, 4, 8, 8), RangeEvoNorm(4, groups=2, chunks=4, eps=0.0)
    for b in range(2):
        for g in range(2):
            part = x[b, 2 * g : 2 * g + 2]
            std = range_deviation(part.reshape(1, -1), 4)
            expected = part * (part / 6 + 0.5).clamp(0, 1) / std
            torch.testing.assert_close(norm(x)[b, 2 * g : 2 * g + 2], expected)


# EvoNormSample2d(8, groups=4), RangeEN(8, chunks=4, groups=4) and RangeBN(8, num_chunks=16) of quantized_training/ in
# github.com/aparna-aketi/Low_Precision_DL (commit fab2528; arXiv 2111.09389), on a CPU with torch 2.15, rounding
# replaced by the identity, on the images and weights below: outputs y and gradients of sum(y * cos(.29 i)) at every
# 97th place, and the sum of y in float64.
AUTHORS = {
    "evonorm_s0": (
        [0.00884242, -0.196225, 0.810751, 0.496302, -0.216597, -0.0182618],
        [0.236007, 0.18734, 0.682474, -0.398124, 0.100294, -0.182642],
        100.114892,
    ),
    "range_evonorm": (
        [0.189496, -0.680646, 0.966343, 1.16336, -0.2, -0.0591442],
        [1.17339, 0.69664, 0.733956, -1.05034, 0.0, -0.292277],
        150.996978,
    ),
    "range_bn": (
        [0.604016, -4.08593, 2.12847, 1.68891, -2.6588, -0.443241],
        [1.08514, -0.563255, 1.01983, -0.952521, 0.936795, -0.837976],
        -12.799999,
    ),
}
OURS = {
    "evonorm_s0": lambda: EvoNormS0(8, groups=4, eps=1e-5),
    "range_evonorm": lambda: RangeEvoNorm(8, groups=4, chunks=4, eps=1e-5),
    "range_bn": lambda: RangeBN(8, chunks=16, momentum=0.9, eps=1e-5),
}


@pytest.mark.parametrize("name", AUTHORS)
def test_norms_are_those_of_the_authors(name):
    """Six stored digits; sums of 512 values near 1 in another order."""
    i = torch.arange(512, dtype=torch.float64)
    x = (torch.sin(0.37 * i) * 2 + torch.cos(0.011 * i * i)).float().view(4, 8, 4, 4).requires_grad_()
    norm, channel = OURS[name](), torch.arange(8, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_((0.5 + 0.1 * channel).view(norm.weight.shape))
        norm.bias.copy_((-0.2 + 0.05 * channel).view(norm.bias.shape))
        if hasattr(norm, "v"):
            norm.v.copy_((1.5 - 0.15 * channel).view(norm.v.shape))
    y = norm(x)
    (dx,) = torch.autograd.grad((y * torch.cos(0.29 * i).float().view(y.shape)).sum(), x)
    expected_y, expected_dx, expected_sum = AUTHORS[name]
    for got, expected in ((y, expected_y), (dx, expected_dx)):
        torch.testing.assert_close(got.detach().flatten()[::97], torch.tensor(expected), rtol=1e-5, atol=2e-6)
    assert y.double().sum().item() == pytest.approx(expected_sum, abs=2e-4)
