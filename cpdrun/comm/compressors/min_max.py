"""Quantization to 2^bits levels between the smallest and the largest value of a layer.

These are the 8-bit tensors of Aketi, Kodge and Roy (arXiv 2111.09389), section 3.
"""

from collections.abc import Sequence

import torch
from custom_fp.rounding import is_stochastic
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor, check_rounding, check_whole, floats, uniforms
from cpdrun.comm.compressors.bitpack import code_dtype, pack_codes, packed_bytes, unpack_floats


class MinMax(Compressor):
    """Sends each value as an integer code between the smallest and the largest value of its layer.

    Let low and high be the smallest and the largest value, and step = (high - low) / (2^bits - 1). A value x is sent as
    code = round((x - low) / step), from 0 to 2^bits - 1, and decoded as low + code * step. The message begins with low
    and high (float32).

    With nearest_even, a tie goes to the even code. With stochastic, the probability of rounding up is the fractional
    part of (x - low) / step. A row of equal values is unchanged. If high - low exceeds the largest float32 value, the
    computation uses halved values. If the step is less than half the smallest subnormal, all values become low. If a
    row contains inf or NaN, all its values become inf or NaN, so that divergence stays visible. -0 may become +0.

    Args:
        bits: The bits per code, from 1 to 16.
        rounding: "nearest_even" or "stochastic".
    """

    in_format = False

    def __init__(self, bits: int, rounding: str):
        check_rounding("compressor.rounding", rounding)
        check_whole("compressor.bits", bits, 16)
        self.bits, self.rounding = bits, rounding

    def message_bytes(self, n: int) -> int:
        return 8 + packed_bytes(n, self.bits)

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        range_Wx2 = torch.stack([x_Wxn.amin(dim=1), x_Wxn.amax(dim=1)], dim=1)
        low_Wx1, step_Wx1, unit_Wx1 = self._grid(range_Wx2)
        level_Wxn = (x_Wxn * unit_Wx1).sub_(low_Wx1).div_(step_Wx1)
        if is_stochastic(self.rounding):
            level_Wxn.add_(uniforms(x_Wxn, keys, self.rounding)).floor_()
        code_Wxn = level_Wxn.nan_to_num_(0.0).round_().clamp_(0, 2**self.bits - 1).to(code_dtype(self.bits))
        return torch.cat([range_Wx2.contiguous().view(torch.uint8), pack_codes(code_Wxn, self.bits)], dim=1)

    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        low_Wx1, step_Wx1, unit_Wx1 = self._grid(floats(data_WxM[:, :8]))
        level_Wxn = unpack_floats(data_WxM[:, 8:], self.bits, n)
        return level_Wxn.mul_(step_Wx1).add_(low_Wx1).div_(unit_Wx1)

    def _grid(self, range_Wx2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return low, step, and the unit of both: 1, or 0.5 if high - low exceeds the largest float32 value."""
        too_wide_Wx1 = torch.isinf(range_Wx2[:, 1:] - range_Wx2[:, :1])
        unit_Wx1 = torch.where(too_wide_Wx1, 0.5, 1.0)
        low_Wx1, high_Wx1 = range_Wx2[:, :1] * unit_Wx1, range_Wx2[:, 1:] * unit_Wx1
        step_Wx1 = (high_Wx1 - low_Wx1) / (2**self.bits - 1)
        return low_Wx1, torch.where(step_Wx1 == 0, 1.0, step_Wx1), unit_Wx1
