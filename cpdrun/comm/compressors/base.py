"""What gossip sends of a layer: few bytes, of a number that depends on the layer's size alone.

Rounded  every value in a format of custom_fp; fp32 sends all as it is
MinMax   every value as one of 2^bits levels between the layer's smallest and largest: the 8-bit tensors of Aketi,
         Kodge and Roy (arXiv 2111.09389), section 3

Legend: W workers of this rank, n values of a layer, M bytes of a message. A row of a matrix is one worker's, and what
becomes of it depends on that row alone, not on how many rows there are: so a worker sends the same bytes in
whichever process it is played.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import custom_fp
import torch
from custom_fp.formats.names import parse
from torch import Tensor

from cpdrun.comm.sums.codec import Draw
from cpdrun.comm.wire.bitpack import pack_codes, packed_bytes, unpack_codes

ROUNDINGS = ("nearest_even", "stochastic")
SHIFT_BYTES = 2


class Compressor(ABC):
    """C and its inverse, layer by layer. One class and one yaml a compressor."""

    lossless = False
    """Whether decompress(compress(x)) is x, bit for bit: in one process nothing is packed then."""

    in_format = True
    """Whether values are sent in the run's number format."""

    @abstractmethod
    def message_bytes(self, n: int) -> int:
        """M for a layer of n values, n > 0."""

    @abstractmethod
    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        """(W, M) uint8. x: float32. keys: for each row what its random numbers depend on, and nothing else."""

    @abstractmethod
    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        """(W, n) float32."""


class Rounded(Compressor):
    """Each value rounded to a format. aps: times 2^shift first, so that the row's largest value is at the format's
    upper end, and divided again by the receiver; the shift (int16) goes in front.

    Rounding, inf, NaN, -0 and subnormals are those of `custom_fp.quantize` with overflow="infinity".
    Raises ValueError for an unknown format or rounding, and for aps with a format that has scales of its own.
    """

    def __init__(self, format: str, aps: bool, rounding: str):
        check_rounding("compressor.rounding", rounding)
        self.format, self.aps, self.rounding = format, aps, rounding
        self.lossless = parse(format).is_fp32 and not aps
        self._bytes: dict[int, int] = {}
        self.message_bytes(1)
        if aps and parse(format).has_scales:
            raise ValueError(f"compressor: {format} has scales of its own: it takes aps=false")

    def message_bytes(self, n: int) -> int:
        if n not in self._bytes:
            self._bytes[n] = custom_fp.pack(torch.zeros(n), self.format).numel()
        return self._bytes[n] + SHIFT_BYTES * self.aps

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        shift_W = self._shifts(x_Wxn) if self.aps else None
        scaled_Wxn = x_Wxn if shift_W is None else torch.ldexp(x_Wxn.double(), shift_W[:, None])
        if self.rounding == "stochastic":
            rows = [self._draw(x_n, key) for x_n, key in zip(scaled_Wxn, keys, strict=True)]
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

    def _draw(self, x_n: Tensor, key: tuple) -> Tensor:
        return custom_fp.quantize(x_n, self.format, rounding="stochastic", seed=Draw(key).seed())

    def _shifts(self, x_Wxn: Tensor) -> Tensor:
        """(W,) int32: `scaling.APS` of each row as the only summand; 0 for a row without finite values but 0."""
        size_W = torch.where(torch.isfinite(x_Wxn), x_Wxn, 0.0).abs().amax(dim=1)
        mantissa_W, exponent_W = torch.frexp(size_W)
        ceiling_W = exponent_W - (mantissa_W == 0.5).int()
        return torch.where(size_W == 0, 0, custom_fp.Format.parse(self.format).emax - ceiling_W)

    def _pack(self, x_Wxn: Tensor) -> Tensor:
        """Each row as `custom_fp.pack` has it; all at once where a format's values stand alone."""
        if parse(self.format).has_scales:
            return torch.stack([custom_fp.pack(x_n, self.format) for x_n in x_Wxn])
        W, n = x_Wxn.shape
        filled = torch.nn.functional.pad(x_Wxn, (0, -n % 8))
        return custom_fp.pack(filled.contiguous(), self.format).view(W, -1)

    def _unpack(self, data_WxM: Tensor, n: int) -> Tensor:
        if parse(self.format).has_scales:
            return torch.stack([custom_fp.unpack(data_M, self.format, (n,)) for data_M in data_WxM])
        shape = (len(data_WxM), n + -n % 8)
        return custom_fp.unpack(data_WxM.contiguous().view(-1), self.format, shape)[:, :n]


class MinMax(Compressor):
    """low + code * step, code = round((x - low) / step) of 0 .. 2^bits - 1, step = (high - low) / (2^bits - 1).

    low and high (float32, the row's smallest and largest value) go in front. nearest_even: a tie goes to the even
    code; stochastic: up with probability equal to the distance. A row of equal values comes back as it is. A row with
    inf or NaN comes back as NaN, so that a diverged run stays visible; -0 may become +0.
    """

    in_format = False

    def __init__(self, bits: int, rounding: str):
        check_rounding("compressor.rounding", rounding)
        if not 1 <= bits <= 16:
            raise ValueError(f"compressor.bits must lie between 1 and 16, not {bits}")
        self.bits, self.rounding = bits, rounding

    def message_bytes(self, n: int) -> int:
        return 8 + packed_bytes(n, self.bits)

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        range_Wx2 = torch.stack([x_Wxn.amin(dim=1), x_Wxn.amax(dim=1)], dim=1)
        low_Wx1, step_Wx1 = self._grid(range_Wx2)
        level_Wxn = (x_Wxn - low_Wx1) / step_Wx1
        if self.rounding == "stochastic":
            level_Wxn = torch.floor(level_Wxn + uniforms(x_Wxn, keys))
        code_Wxn = level_Wxn.nan_to_num(0.0).round().clamp_(0, 2**self.bits - 1).to(torch.int64)
        return torch.cat([range_Wx2.contiguous().view(torch.uint8), pack_codes(code_Wxn, self.bits)], dim=1)

    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        low_Wx1, step_Wx1 = self._grid(floats(data_WxM[:, :8]))
        return unpack_codes(data_WxM[:, 8:], self.bits, n).float() * step_Wx1 + low_Wx1

    def _grid(self, range_Wx2: Tensor) -> tuple[Tensor, Tensor]:
        low_Wx1, high_Wx1 = range_Wx2[:, :1], range_Wx2[:, 1:]
        step_Wx1 = (high_Wx1 - low_Wx1) / (2**self.bits - 1)
        return low_Wx1, torch.where(step_Wx1 == 0, 1.0, step_Wx1)


def check_rounding(key: str, rounding: str) -> None:
    if rounding not in ROUNDINGS:
        raise ValueError(f"{key} must be one of {', '.join(ROUNDINGS)}, not {rounding}")


def floats(data_WxM: Tensor) -> Tensor:
    """(W, M / 4) float32: the numbers that these bytes, 4 each, are."""
    return data_WxM.clone(memory_format=torch.contiguous_format).view(torch.float32)


def uniforms(like_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
    """Uniform float32 numbers in [0, 1), each row's from a generator of its own, drawn on the CPU."""
    n = like_Wxn.shape[1]
    rows = [torch.rand(n, generator=torch.Generator().manual_seed(Draw(key).seed())) for key in keys]
    return torch.stack(rows).to(like_Wxn.device)
