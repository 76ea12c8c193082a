"""Normalisation layers for few bits and for skewed data, of images (B, C, H, W) float32.

RangeBN       batch norm by the range of the values instead of their variance (Banner, Hubara, Hoffer and Soudry, arXiv
              1805.11046, section 3): no squares, so that 8 bits carry it
EvoNormS0     x sigmoid(v x) / std over groups of channels of one sample (Liu, Brock, Simonyan and Le, arXiv 2004.02967,
              table 2): norm and activation in one, without the batch statistics that differ between skewed workers
RangeEvoNorm  EvoNormS0 by range and with a hard sigmoid: Aketi, Kodge and Roy, arXiv 2111.09389, section 3

The deviation of n values in c chunks, from their range, as that paper's code has it:

    std = .175 (1 + sqrt(pi ln 4)) / sqrt(2 ln(n / c)) * (mean over chunks of the largest - mean of the smallest)

where 1805.11046 has 1 / sqrt(2 ln n) * (largest - smallest). What differs from that code: affine weights begin at 1,
not at random; `momentum` is the share of the new batch in the running statistics, as in torch; where n is no multiple
of the chunks, the largest common divisor is taken.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GAUSSIAN = 0.5 * 0.35 * (1 + math.sqrt(math.pi * math.log(4)))


def range_deviation(x_XxN: Tensor, chunks: int) -> Tensor:
    """(X,): the deviation of each row, from its range; n > chunks."""
    n = x_XxN.shape[1]
    chunks = math.gcd(n, chunks)
    if n // chunks < 2:
        chunks = 1
    pieces = x_XxN.reshape(len(x_XxN), chunks, n // chunks)
    spread_X = pieces.amax(dim=2).mean(dim=1) - pieces.amin(dim=2).mean(dim=1)
    return spread_X * (GAUSSIAN / math.sqrt(2 * math.log(max(2, n // chunks))))


class RangeBN(nn.Module):
    """Batch norm whose deviation comes from the range of each channel; running statistics as in BatchNorm2d."""

    activates = False

    def __init__(self, channels: int, chunks: int, momentum: float, eps: float):
        super().__init__()
        self.chunks, self.momentum, self.eps = chunks, momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_std", torch.ones(channels))

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        if self.training:
            x_CxN = x_BxCxHxW.transpose(0, 1).flatten(1)
            mean_C, std_C = x_CxN.mean(dim=1), range_deviation(x_CxN, self.chunks)
            self.running_mean.mul_(1 - self.momentum).add_(mean_C.detach() * self.momentum)
            self.running_std.mul_(1 - self.momentum).add_(std_C.detach() * self.momentum)
        else:
            mean_C, std_C = self.running_mean, self.running_std
        gain_C = self.weight / (std_C + self.eps)
        return (x_BxCxHxW - mean_C[:, None, None]) * gain_C[:, None, None] + self.bias[:, None, None]


class EvoNormS0(nn.Module):
    """x sigmoid(v x) / sqrt(var + eps) * weight + bias; var over the channels of a group and all pixels of a sample.

    Raises ValueError where `groups` does not divide the channels.
    """

    activates = True

    def __init__(self, channels: int, groups: int, eps: float):
        super().__init__()
        if channels % groups:
            raise ValueError(f"norm.groups={groups} does not divide {channels} channels")
        self.groups, self.eps = groups, eps
        shape = (channels, 1, 1)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.v = nn.Parameter(torch.ones(shape))

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        grouped = x_BxCxHxW.unflatten(1, (self.groups, -1)).flatten(2)  # B x G x N
        scaled = (self.gate(x_BxCxHxW) * x_BxCxHxW).unflatten(1, (self.groups, -1)).flatten(2)
        normed = scaled / self.deviation(grouped)[:, :, None]
        return normed.view_as(x_BxCxHxW) * self.weight + self.bias

    def gate(self, x_BxCxHxW: Tensor) -> Tensor:
        return torch.sigmoid(self.v * x_BxCxHxW)

    def deviation(self, x_BxGxN: Tensor) -> Tensor:
        return (x_BxGxN.var(dim=2, unbiased=False) + self.eps).sqrt()


class RangeEvoNorm(EvoNormS0):
    """EvoNormS0 with the deviation by range and min(max(v x / 6 + 1/2, 0), 1) for the sigmoid."""

    def __init__(self, channels: int, groups: int, chunks: int, eps: float):
        super().__init__(channels, groups, eps)
        self.chunks = chunks

    def gate(self, x_BxCxHxW: Tensor) -> Tensor:
        return F.hardsigmoid(self.v * x_BxCxHxW)

    def deviation(self, x_BxGxN: Tensor) -> Tensor:
        B, G, _ = x_BxGxN.shape
        return range_deviation(x_BxGxN.flatten(0, 1), self.chunks).view(B, G) + self.eps


class BatchNorm(nn.BatchNorm2d):
    """torch's, by the names that the other norms have."""

    activates = False

    def __init__(self, channels: int, momentum: float, eps: float):
        super().__init__(channels, eps=eps, momentum=momentum)


class Sum(nn.Module):
    """The sum of two branches, as a module, so that a precision can round what enters it."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def activates(norm: nn.Module) -> bool:
    """Whether it holds the activation, so that no ReLU follows."""
    return bool(getattr(norm, "activates", False))


def activated(norm: nn.Module) -> nn.Module:
    """The norm and, where it needs one, a ReLU."""
    return norm if activates(norm) else nn.Sequential(norm, nn.ReLU())


def is_norm(module: nn.Module) -> bool:
    """Whether a module without modules in it is one of those above or has Norm in its class's name."""
    named = "norm" in type(module).__name__.lower()
    return not list(module.children()) and (named or isinstance(module, RangeBN))
