"""The sign of each value and one scale per layer.

This is the scaled sign of Karimireddy, Rebjock, Stich and Jaggi ("Error Feedback Fixes SignSGD and other Gradient
Compression Schemes", arXiv 1901.09847, section 3):

    C(x) = |x|_1 / n * sign(x),   |C(x) - x|^2 = |x|^2 - |x|_1^2 / n

Training with this compressor converges with error feedback. Without error feedback, the compressor is biased and has
the problems of signSGD (section 2 of the paper). A difference from the paper: sign(0) is 1, because a bit has only two
states. The second equation therefore holds exactly. The majority vote of arXiv 1802.05880, which returns one bit
without a scale, is not implemented.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor, check_whole, floats
from cpdrun.comm.compressors.bitpack import pack_codes, packed_bytes, unpack_floats


class Sign(Compressor):
    """Sends one scale per layer and one bit per value, which is 1 for negative values.

    The scale (float32) is the mean magnitude, computed in float64 and rounded once. 0 and -0 are decoded as the scale.
    A row of zeros becomes +0. If a row contains inf or NaN, all its values become NaN, so that divergence stays
    visible. Subnormals are not flushed to zero. A mean magnitude below half the smallest subnormal becomes 0.

    Args:
        bits: Must be 1.
    """

    in_format = False

    def __init__(self, bits: int):
        check_whole("compressor.bits", bits, 1)
        self.bits = bits

    def message_bytes(self, n: int) -> int:
        return 4 + packed_bytes(n, self.bits)

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        scale_Wx1 = torch.stack([row.abs().mean(dtype=torch.float64) for row in x_Wxn]).float()[:, None]
        return torch.cat([scale_Wx1.view(torch.uint8), pack_codes(x_Wxn < 0, self.bits)], dim=1)

    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        scale_Wx1 = floats(data_WxM[:, :4])
        scale_Wx1 = torch.where(torch.isfinite(scale_Wx1), scale_Wx1, torch.nan)
        minus_Wxn = unpack_floats(data_WxM[:, 4:], self.bits, n)
        return minus_Wxn.mul_(-2.0).add_(1.0).mul_(scale_Wx1).add_(0.0)
