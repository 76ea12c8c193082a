"""Every value in a format of custom_fp; fp32 sends all as it is."""

from collections.abc import Sequence

import custom_fp
import torch
from custom_fp.formats.names import parse
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor, check_rounding
from cpdrun.comm.sums.draw import Draw

SHIFT_BYTES = 2


class Rounded(Compressor):
    """Each value rounded to a format. aps: times 2^shift first, so that the row's largest value is at the format's
    upper end, and divided again by the receiver; the shift (int16) goes in front.

    Rounding, inf, NaN, -0 and subnormals are those of `custom_fp.quantize` with overflow="infinity".
    Raises ValueError for an unknown format or rounding, and for aps with a format that has scales of its own.
    """

    def __init__(self, format: str, aps: bool, rounding: str):
        check_rounding("compressor.rounding", rounding)
        self.format, self.aps, self.rounding = parse(format), aps, rounding
        self.format.check_flat()
        self.lossless = self.format.is_fp32 and not aps
        if aps and self.format.has_scales:
            raise ValueError(f"compressor: {format} has scales of its own: it takes aps=false")
        if rounding == "stochastic" and self.format.has_scales:
            raise ValueError(
                f"compressor: {format} rounds to nearest only: it takes compressor.rounding=nearest_even"
            )

    def message_bytes(self, n: int) -> int:
        return self.format.packed_size(n) + SHIFT_BYTES * self.aps

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        shift_W = self._shifts(x_Wxn) if self.aps else None
        scaled_Wxn = x_Wxn if shift_W is None else torch.ldexp(x_Wxn.double(), shift_W[:, None])
        if self.rounding == "stochastic":
            seeds = [Draw(key).seed() for key in keys]
            rows = [
                custom_fp.quantize(x_n, self.format, rounding="stochastic", seed=seed)
                for x_n, seed in zip(scaled_Wxn, seeds, strict=True)
            ]
            scaled_Wxn = torch.stack(rows)
        packed_WxM = self._pack(scaled_Wxn)
        if shift_W is None:
            return packed_WxM
        head_Wx2 = shift_W.to(torch.int16)[:, None].contiguous().view(torch.uint8)
        return torch.cat([head_Wx2, packed_WxM], dim=1)

    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        if not self.aps:
            return self._unpack(data_WxM, n)
        head_Wx2 = data_WxM[:, :SHIFT_BYTES].clone(memory_format=torch.contiguous_format)
        shift_Wx1 = head_Wx2.view(torch.int16).int()
        return torch.ldexp(self._unpack(data_WxM[:, SHIFT_BYTES:], n).double(), -shift_Wx1).float()

    def _shifts(self, x_Wxn: Tensor) -> Tensor:
        """(W,) int32: `scaling.APS` of each row as the only summand; 0 for a row without finite values but 0."""
        size_W = torch.where(torch.isfinite(x_Wxn), x_Wxn, 0.0).abs().amax(dim=1)
        mantissa_W, exponent_W = torch.frexp(size_W)
        ceiling_W = exponent_W - (mantissa_W == 0.5).int()
        return torch.where(size_W == 0, 0, self.format.emax - ceiling_W)

    def _pack(self, x_Wxn: Tensor) -> Tensor:
        """Each row as `custom_fp.pack` has it; all at once where a format's values stand alone."""
        if self.format.has_scales:
            return torch.stack([custom_fp.pack(x_n, self.format) for x_n in x_Wxn])
        W, n = x_Wxn.shape
        filled = torch.nn.functional.pad(x_Wxn, (0, -n % 8))
        return custom_fp.pack(filled.contiguous(), self.format).view(W, -1)

    def _unpack(self, data_WxM: Tensor, n: int) -> Tensor:
        if self.format.has_scales:
            return torch.stack([custom_fp.unpack(data_M, self.format, (n,)) for data_M in data_WxM])
        shape = (len(data_WxM), n + -n % 8)
        return custom_fp.unpack(data_WxM.contiguous().view(-1), self.format, shape)[:, :n]
