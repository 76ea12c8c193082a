"""APS for tensors that do not travel: weights, activations and errors, each shifted so that it fills its format.

The rule of Han, Demmel and You (arXiv:1911.08907) for gradients, applied to one tensor x of one worker, as the authors'
later tests do with activations (github.com/drcut/customized_precision_test, APS_test):

    shift = emax - ceil(log2 max|x|);    x -> Q(x 2^shift) 2^-shift

inf and NaN take no part in the shift and stay what they are; zeros stay zeros. Nothing overflows: the
largest value comes to lie in (2^(emax-1), 2^emax].

What differs from those tests: they round the outputs of convolutions alone, leave them shifted (the batch norm behind
them takes the factor out again, but for LeNet, which has none), cast weights without a shift and errors not at all, and
their DavidNet keeps a shift for good once it has been the same for 30 steps, which saves a reduction and no bit.
"""

from typing import Any

import torch
from torch import Tensor

from custom_fp import ops
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat

FLOAT64_BIAS, FLOAT64_FRACTION = 1023, 52


def aps_quantize(x: Tensor, fmt: str | NumberFormat) -> Tensor:
    """x rounded so, as float32 of the same shape; x is float32. The gradient passes straight through; works under vmap,
    with a shift for each element of the batch."""
    return _ApsQuantize.apply(x, parse(fmt).name)


class _ApsQuantize(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, fmt: str) -> Tensor:
        return on_device(x, fmt) if x.is_cuda else on_cpu(x, fmt)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, fmt: str):
        rows = x.movedim(in_dims[0], 0)
        return torch.stack([_ApsQuantize.apply(row, fmt) for row in rows]), 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        return grad, None


def on_cpu(x: Tensor, fmt: str) -> Tensor:
    """By the compiled operators that gradients go through on their way, which shift as they round."""
    exponent = ops.max_exponent(x)
    shift = 0 if exponent is None else parse(fmt).emax - exponent
    return ops.unpack(ops.pack(x, fmt, shift=shift), fmt, tuple(x.shape), shift=-shift)


def on_device(x: Tensor, fmt: str) -> Tensor:
    """The same bits by torch's operators, on any device, without waiting for the largest value to arrive here."""
    if x.numel() == 0:
        return ops.quantize(x, fmt)
    shift = parse(fmt).emax - _exponent(x)
    # float64 holds any float32 times such a power exactly, so that each of the two results is rounded once
    shifted = ops.quantize(x.double() * _power_of_two(shift), fmt)
    return (shifted.double() * _power_of_two(-shift)).float()


def _exponent(x: Tensor) -> Tensor:
    """ceil(log2 max|x|) over the finite elements, 0-d int64; 0 for zeros, of which any shift makes
    zeros."""
    largest = torch.where(torch.isfinite(x), x, 0.0).abs().amax().double()  # no subnormals among these
    bits = largest.view(torch.int64)
    exponent = (bits >> FLOAT64_FRACTION) - FLOAT64_BIAS
    fraction = bits & ((1 << FLOAT64_FRACTION) - 1)
    return torch.where(largest > 0, exponent + (fraction != 0), 0)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent, float64, for exponents from -1022 to 1023."""
    return ((exponent + FLOAT64_BIAS) << FLOAT64_FRACTION).view(torch.float64)
