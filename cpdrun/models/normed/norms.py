"""Normalization layers for training with few bits and on skewed data. They take images (B, C, H, W) float32.

RangeBN       Batch norm that estimates the deviation from the range of the values, not from their variance (Banner,
              Hubara, Hoffer and Soudry, arXiv 1805.11046, section 3). It computes no squares, so 8 bits are enough.
EvoNormS0     x sigmoid(v x) / std, with the deviation over a group of channels of one sample (Liu, Brock, Simonyan and
              Le, arXiv 2004.02967, table 2). It is norm and activation in one, and needs no batch statistics, which
              differ between workers with skewed data.
RangeEvoNorm  EvoNormS0 with the deviation from the range and with a hard sigmoid (Aketi, Kodge and Roy,
              arXiv 2111.09389, section 3).

As in the code of arXiv 2111.09389, the deviation of n values in c chunks is estimated from their range as

    std = 0.175 (1 + sqrt(pi ln 4)) / sqrt(2 ln(n / c)) * (mean of the chunks' maxima - mean of the chunks' minima)

In arXiv 1805.11046, it is 1 / sqrt(2 ln n) * (maximum - minimum). Differences from the code of arXiv 2111.09389:

- The affine weights start at 1, not at random values.
- `momentum` is the weight of the new batch in the running statistics, as in torch.
- If n is not a multiple of the number of chunks, the greatest common divisor of both is used as the number of chunks.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GAUSSIAN = 0.5 * 0.35 * (1 + math.sqrt(math.pi * math.log(4)))


def range_deviation(x_XxN: Tensor, chunks: int) -> Tensor:
    """Estimate the standard deviation of each row from its range.

    Args:
        x_XxN: The values, (X, N) float32, with N > chunks.
        chunks: The number of chunks c of a row.

    Returns:
        The deviations, (X,) float32.
    """
    n = x_XxN.shape[1]
    chunks = math.gcd(n, chunks)
    if n // chunks < 2:
        chunks = 1
    pieces = x_XxN.reshape(len(x_XxN), chunks, n // chunks)
    spread_X = pieces.amax(dim=2).mean(dim=1) - pieces.amin(dim=2).mean(dim=1)
    return spread_X * (GAUSSIAN / math.sqrt(2 * math.log(max(2, n // chunks))))


class RangeBN(nn.Module):
    """Batch norm that estimates the deviation of each channel from its range.

    The running statistics work as in `torch.nn.BatchNorm2d`.

    Args:
        channels: The number of channels.
        chunks: The number of chunks into which the values of a channel are divided.
        momentum: The weight of the new batch in the running statistics.
        eps: The number that is added to the deviation.
    """

    activates = False
    running_mean: Tensor
    running_std: Tensor

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
    """Compute x sigmoid(v x) / sqrt(var + eps) * weight + bias.

    The variance is taken over the channels of a group and all pixels of one sample.

    Args:
        channels: The number of channels.
        groups: The number of groups of channels.
        eps: The number that is added to the variance.

    Raises:
        ValueError: The number of groups does not divide the number of channels.
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
        """Return the gate, which multiplies the input."""
        return torch.sigmoid(self.v * x_BxCxHxW)

    def deviation(self, x_BxGxN: Tensor) -> Tensor:
        """Return the deviation of each sample and group, (B, G) float32."""
        return (x_BxGxN.var(dim=2, unbiased=False) + self.eps).sqrt()


class RangeEvoNorm(EvoNormS0):
    """EvoNormS0 with the deviation from the range and the hard sigmoid min(max(v x / 6 + 1/2, 0), 1).

    Args:
        channels: The number of channels.
        groups: The number of groups of channels.
        chunks: The number of chunks into which the values of a group are divided.
        eps: The number that is added to the deviation.
    """

    def __init__(self, channels: int, groups: int, chunks: int, eps: float):
        super().__init__(channels, groups, eps)
        self.chunks = chunks

    def gate(self, x_BxCxHxW: Tensor) -> Tensor:
        return F.hardsigmoid(self.v * x_BxCxHxW)

    def deviation(self, x_BxGxN: Tensor) -> Tensor:
        B, G, _ = x_BxGxN.shape
        return range_deviation(x_BxGxN.flatten(0, 1), self.chunks).view(B, G) + self.eps


class BatchNorm(nn.BatchNorm2d):
    """The batch norm of torch, with the argument names of the other norms."""

    activates = False

    def __init__(self, channels: int, momentum: float, eps: float):
        super().__init__(channels, eps=eps, momentum=momentum)


class GroupNorm(nn.GroupNorm):
    """The group norm of torch (Wu and He, arXiv 1803.08494), with the argument names of the other norms."""

    activates = False

    def __init__(self, channels: int, groups: int, eps: float):
        super().__init__(groups, channels, eps=eps)


class Sum(nn.Module):
    """The sum of two branches. It is a module so that a precision can round its inputs."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def activates(norm: nn.Module) -> bool:
    """Return whether the norm includes the activation, so that no ReLU follows."""
    return bool(getattr(norm, "activates", False))


def activated(norm: nn.Module) -> nn.Module:
    """Return the norm, followed by a ReLU unless the norm includes the activation."""
    return norm if activates(norm) else nn.Sequential(norm, nn.ReLU())


def is_norm(module: nn.Module) -> bool:
    """Return whether a module has no submodules and is a normalization layer.

    Normalization layers are `RangeBN` and all modules whose class name contains "norm" in any case.
    """
    named = "norm" in type(module).__name__.lower()
    return not list(module.children()) and (named or isinstance(module, RangeBN))
