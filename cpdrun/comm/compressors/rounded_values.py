"""Compression by rounding every value to a number format. The format fp32 sends all values unchanged."""

from collections.abc import Sequence
from typing import Any

import custom_fp
import torch
from custom_fp.formats.names import parse
from custom_fp.rounding import Rounding, is_stochastic
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor, check_rounding
from cpdrun.comm.sums.sum import RandomStream

SHIFT_BYTES = 2


class Rounded(Compressor):
    """Sends each value rounded to a number format.

    With `aps`, the sender multiplies a row by 2^shift, so that its largest value is at the upper end of the format's
    range, and the receiver divides by 2^shift. The message then begins with the shift (int16).

    Values are rounded by `custom_fp.quantize` with overflow="infinity", which also defines the results for inf, NaN, -0
    and subnormals.

    Args:
        format: The name of the format.
        aps: Whether the values are scaled with auto-precision scaling (APS).
        rounding: The rounding mode.

    Raises:
        ValueError: The format or the rounding is unknown, or `aps` is set for a format with its own scales.
    """

    def __init__(self, format: str, aps: bool, rounding: str):
        check_rounding("compressor.rounding", rounding, tuple(Rounding))
        self.format: Any = parse(format)  # has emin and emax if it is a floating-point format
        self.aps, self.rounding = aps, rounding
        self.format.check_flat()
        self.lossless = self.format.is_fp32 and not aps
        if aps and self.format.has_scales:
            raise ValueError(f"compressor: format {format} has its own scales. Set aps=false")
        if rounding != "nearest_even" and not self.format.takes_rounding:
            raise ValueError(
                f"compressor: format {format} only supports rounding to nearest. Set compressor.rounding=nearest_even"
            )

    def message_bytes(self, n: int) -> int:
        return self.format.packed_size(n) + SHIFT_BYTES * self.aps

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        shift_W = self._shifts(x_Wxn) if self.aps else None
        scaled_Wxn = x_Wxn if shift_W is None else self._scaled(x_Wxn, shift_W)
        packed_WxM = self._pack(scaled_Wxn, keys)
        if shift_W is None:
            return packed_WxM
        head_Wx2 = shift_W.to(torch.int16)[:, None].contiguous().view(torch.uint8)
        return torch.cat([head_Wx2, packed_WxM], dim=1)

    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        if not self.aps:
            return self._unpack(data_WxM, n)
        head_Wx2 = data_WxM[:, :SHIFT_BYTES].clone(memory_format=torch.contiguous_format)
        shift_Wx1 = head_Wx2.view(torch.int16).int()
        value_Wxn = self._unpack(data_WxM[:, SHIFT_BYTES:], n)
        if _are_moderate(shift_Wx1):  # A float32 multiplication then rounds only once, too.
            return value_Wxn * torch.ldexp(torch.ones_like(value_Wxn[:, :1]), -shift_Wx1)
        return torch.ldexp(value_Wxn.double(), -shift_Wx1).float()

    def _scaled(self, x_Wxn: Tensor, shift_W: Tensor) -> Tensor:
        """Return x * 2^shift, exactly.

        The result is float64, or float32 if the format's rounding of both is equal (see `codec._float32_will_do`).
        """
        smallest, shift_Wx1 = self.format.emin - self.format.mantissa_bits, shift_W[:, None]
        if self.rounding == "nearest_even" and smallest > -120 and _are_moderate(shift_W):
            return x_Wxn * torch.ldexp(torch.ones_like(x_Wxn[:, :1]), shift_Wx1)
        return torch.ldexp(x_Wxn.double(), shift_Wx1)

    def _shifts(self, x_Wxn: Tensor) -> Tensor:
        """Return the shift (W,), int32, that `scaling.APS` chooses for each row alone.

        The shift of a row without finite non-zero values is 0.
        """
        low_W, high_W = torch.aminmax(x_Wxn, dim=1)
        size_W = torch.maximum(-low_W, high_W)
        if size_W.is_cuda or not torch.isfinite(size_W).all():  # on a GPU, the test would synchronize
            size_W = torch.where(torch.isfinite(x_Wxn), x_Wxn, 0.0).abs().amax(dim=1)
        mantissa_W, exponent_W = torch.frexp(size_W)
        ceiling_W = exponent_W - (mantissa_W == 0.5).int()
        return torch.where(size_W == 0, 0, self.format.emax - ceiling_W)

    def _pack(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        """Pack each row with `custom_fp.pack`.

        One call packs all rows if the format has no scales and the rounding is not stochastic.
        """
        draws = is_stochastic(self.rounding)
        if draws or self.format.has_scales:
            seeds = [RandomStream(key).seed() if draws else None for key in keys]
            rows = zip(x_Wxn, seeds, strict=True)
            return torch.stack(
                [custom_fp.pack(x_n, self.format, rounding=self.rounding, seed=seed) for x_n, seed in rows]
            )
        W, n = x_Wxn.shape
        filled = torch.nn.functional.pad(x_Wxn, (0, -n % 8))
        return custom_fp.pack(filled.contiguous(), self.format, rounding=self.rounding).view(W, -1)

    def _unpack(self, data_WxM: Tensor, n: int) -> Tensor:
        if self.format.has_scales:
            return torch.stack([custom_fp.unpack(data_M, self.format, (n,)) for data_M in data_WxM])
        shape = (len(data_WxM), n + -n % 8)
        return custom_fp.unpack(data_WxM.contiguous().view(-1), self.format, shape)[:, :n]


def _are_moderate(shift: Tensor) -> bool:
    """Return whether 2^shift and 2^-shift are normal float32 numbers, or False on a GPU to avoid synchronization."""
    return not shift.is_cuda and bool((shift.abs() <= 126).all())
