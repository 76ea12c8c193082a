"""MX in torch: the reference that mx_native.py is held to. Elements are rounded by the operators themselves."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from custom_fp import operators
from custom_fp.formats.block import INT8_FRACTION_BITS, BlockFormat
from custom_fp.rule import Overflow, Rounding
from custom_fp.scaled.blocks import Blocks, Encoded

_E8M0_BIAS, _E8M0_NAN = 127, 255
_SATURATING = Rounding.NEAREST_EVEN, Overflow.SATURATE


class MxBlocks(Blocks):
    """A block divided by a power of two; its quotients rounded to the elements' format."""

    def encode_blocks(self, fmt: BlockFormat, x_BxK: Tensor, largest_B: Tensor) -> Encoded:
        elements_BxK, scales_B = _elements(fmt, x_BxK, largest_B)
        if fmt.element is None:
            return (elements_BxK * 2.0**INT8_FRACTION_BITS).to(torch.int8).view(torch.uint8), scales_B
        return operators.encode.compute(elements_BxK, fmt.element)[0], scales_B

    def decode_blocks(self, fmt: BlockFormat, codes_BxK: Tensor, scales_B: Tensor) -> Tensor:
        powers_B = _powers(str(codes_BxK.device))[scales_B.to(torch.int32)]
        if fmt.element is None:
            elements = codes_BxK.view(torch.int8).to(torch.float32) * 2.0**-INT8_FRACTION_BITS
        else:
            elements = operators.decode.compute([codes_BxK], fmt.element)
        return elements * powers_B[:, None]

    def round_blocks(self, fmt: BlockFormat, x_BxK: Tensor, largest_B: Tensor) -> Tensor:
        elements_BxK, scales_B = _elements(fmt, x_BxK, largest_B)
        return elements_BxK * _powers(str(x_BxK.device))[scales_B.to(torch.int32)][:, None]

    def pack_codes(self, codes_n: Tensor, fmt: BlockFormat) -> Tensor:
        if fmt.code_bits == 8:
            return super().pack_codes(codes_n, fmt)
        values_n = operators.decode.compute([codes_n], fmt.element)  # none is a NaN: they keep their codes
        return operators.pack.compute(values_n, fmt.element, 0)

    def unpack_codes(self, data: Tensor, n: int, fmt: BlockFormat) -> Tensor:
        if fmt.code_bits == 8:
            return super().unpack_codes(data, n, fmt)
        return operators.encode.compute(operators.unpack.compute(data, fmt.element, (n,), 0), fmt.element)[0]


def _elements(fmt: BlockFormat, x_BxK: Tensor, largest_B: Tensor) -> Encoded:
    """The values of the elements, float32, and the codes of the scales."""
    exponent_B = torch.frexp(largest_B).exponent - (1 + fmt.emax)  # floor(log2), subnormals too
    finite_B = torch.isfinite(largest_B)
    exponent_B = torch.where((largest_B > 0) & finite_B, exponent_B.clamp(-127, 127), -127)
    # exact but where the product is subnormal, and that is far below the smallest element
    scaled_BxK = x_BxK * _powers(str(x_BxK.device))[_E8M0_BIAS - exponent_B][:, None]
    if fmt.element is None:
        units_BxK = (scaled_BxK * 2.0**INT8_FRACTION_BITS).round().clamp(-128, 127)  # round: half to even
        elements_BxK = units_BxK * 2.0**-INT8_FRACTION_BITS + 0.0  # no -0
    else:
        elements_BxK = operators.quantize.compute(scaled_BxK, fmt.element, *_SATURATING)
    elements_BxK = torch.where(finite_B[:, None], elements_BxK, 0.0)
    return elements_BxK, torch.where(finite_B, exponent_B + _E8M0_BIAS, _E8M0_NAN).to(torch.uint8)


@cache
def _powers(device: str) -> Tensor:
    """2**(i - 127) for i = 0..254, NaN for 255, in float32: the values of e8m0."""
    exponents = torch.arange(-127, 128, dtype=torch.float64)
    return torch.cat([torch.exp2(exponents), torch.tensor([math.nan])]).to(torch.float32).to(device)


backend = MxBlocks()
