"""APS for tensors that are not communicated: each weight, activation or gradient is shifted to fill its format.

Han, Demmel and You (arXiv:1911.08907) use this rule for gradients. Here it applies to a single tensor x of one worker,
as in the authors' later tests with activations (github.com/drcut/customized_precision_test, APS_test):

    shift = emax - ceil(log2 max|x|);    x -> Q(x 2^shift) 2^-shift

Infinity and NaN are ignored when the shift is computed, and are kept. Zeros stay zeros. Nothing overflows, because the
largest magnitude is shifted into (2^(emax-1), 2^emax].

The authors' tests differ from this module. They round only the outputs of convolutions and do not shift them back. The
following batch norm removes the factor, except in LeNet, which has no batch norm. They round weights without a shift,
and do not round gradients. Their DavidNet keeps a shift forever once it has been the same for 30 steps, which saves a
reduction and does not change the result.
"""

from typing import Any

import torch
from torch import Tensor

from custom_fp import ops
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated

FLOAT64_BIAS, FLOAT64_FRACTION = 1023, 52


def aps_quantize(x: Tensor, fmt: str | NumberFormat) -> Tensor:
    """Round a tensor with APS. The gradient passes straight through.

    Args:
        x: A float32 tensor of any shape. Under vmap, each element of the batch has its own shift.
        fmt: A format without scales, or its name.

    Returns:
        The rounded values as float32, of the same shape.
    """
    return _ApsQuantize.apply(x, parse(fmt).name)


class _ApsQuantize(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, fmt: str) -> Tensor:
        return quantize_on_device(x, fmt) if x.is_cuda else quantize_on_cpu(x, fmt)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, fmt: str) -> tuple[Tensor, int]:
        rows = x.movedim(in_dims[0], 0)
        return torch.stack([_ApsQuantize.apply(row, fmt) for row in rows]), 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def quantize_on_cpu(x: Tensor, fmt: str) -> Tensor:
    """Round with the operators that pack gradients for communication, because they shift and round in one pass."""
    exponent = ops.max_exponent(x)
    shift = 0 if exponent is None else _emax(fmt) - exponent
    return ops.unpack(ops.pack(x, fmt, shift=shift), fmt, tuple(x.shape), shift=-shift)


def quantize_on_device(x: Tensor, fmt: str) -> Tensor:
    """Return the same bits as `quantize_on_cpu`, on any device and without synchronizing with the device."""
    if x.numel() == 0:
        return ops.quantize(x, fmt)
    shift = _emax(fmt) - _exponent(x)
    # float64 represents a float32 times this power of two exactly, so both functions round only once.
    shifted = ops.quantize(x.double() * _power_of_two(shift), fmt)
    return (shifted.double() * _power_of_two(-shift)).float()


def _emax(name: str) -> int:
    fmt = parse(name)
    assert isinstance(fmt, Format | Tabulated), fmt
    return fmt.emax


def _exponent(x: Tensor) -> Tensor:
    """Return ceil(log2 max|x|) over the finite elements as a 0-d int64 tensor, or 0 if all of them are zero."""
    largest = torch.where(torch.isfinite(x), x, 0.0).abs().amax()
    largest = largest.double()  # float32 subnormals are normal in float64
    bits = largest.view(torch.int64)
    exponent = (bits >> FLOAT64_FRACTION) - FLOAT64_BIAS
    fraction = bits & ((1 << FLOAT64_FRACTION) - 1)
    return torch.where(largest > 0, exponent + (fraction != 0), 0)


def _power_of_two(exponent: Tensor) -> Tensor:
    """Return 2^exponent as float64, for exponents from -1022 to 1023."""
    return ((exponent + FLOAT64_BIAS) << FLOAT64_FRACTION).view(torch.float64)
