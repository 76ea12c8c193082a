"""QSGD: quantization to multiples of the norm of a layer, with stochastic rounding.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", arXiv 1610.02132, section
3.1:

    Q_s(v_i) = |v|_2 * sign(v_i) * l_i / s,   l_i = floor(a) or floor(a) + 1,   a = s |v_i| / |v|_2

The probability of floor(a) + 1 is a - floor(a).

Differences from the paper: each level takes ceil(log2(2 s + 1)) bits, so the length of a message is known in advance.
The paper uses Elias codes, whose length varies. If `contract` is set, decoded values are divided by tau = 1 + min(n /
s^2, sqrt(n) / s), as in arXiv 1902.00340, section 3.5. This turns the unbiased operator into a contraction, which
CHOCO-SGD and error feedback require.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor, check_whole, floats, uniforms
from cpdrun.comm.compressors.bitpack import code_dtype, pack_codes, packed_bytes, unpack_floats


class QSGD(Compressor):
    """Sends the norm of a layer (float32) and one integer level per value.

    A row of zeros is unchanged. If a row contains inf or NaN, or its norm exceeds the largest float32 value, all its
    values become NaN.

    Args:
        levels: The number s of positive levels, from 1 to 32767.
        contract: Whether values are divided by tau.
    """

    in_format = False

    def __init__(self, levels: int, contract: bool):
        check_whole("compressor.levels", levels, 32767)
        self.levels, self.contract = levels, contract
        self.bits = (2 * levels).bit_length()

    def message_bytes(self, n: int) -> int:
        return 4 + packed_bytes(n, self.bits)

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        norm_Wx1 = torch.stack([row.double().norm() for row in x_Wxn]).float()[:, None]
        place_Wxn = x_Wxn.abs().div_(torch.where(norm_Wx1 == 0, 1.0, norm_Wx1)).mul_(self.levels)
        level_Wxn = (
            place_Wxn.add_(uniforms(x_Wxn, keys)).floor_().nan_to_num_(0.0, 0.0).clamp_(max=self.levels)
        )
        code_Wxn = level_Wxn.copysign_(x_Wxn).add_(self.levels).to(code_dtype(self.bits))
        return torch.cat([norm_Wx1.view(torch.uint8), pack_codes(code_Wxn, self.bits)], dim=1)

    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        norm_Wx1 = floats(data_WxM[:, :4])
        norm_Wx1 = torch.where(torch.isfinite(norm_Wx1), norm_Wx1, torch.nan)
        level_Wxn = unpack_floats(data_WxM[:, 4:], self.bits, n).sub_(self.levels)
        x_Wxn = level_Wxn.div_(self.levels).mul_(norm_Wx1)
        return x_Wxn.div_(self.tau(n)) if self.contract else x_Wxn

    def tau(self, n: int) -> float:
        """Return 1 + omega, an upper bound of the expected |Q(v)|^2 / |v|^2."""
        return 1 + min(n / self.levels**2, math.sqrt(n) / self.levels)
