"""The interface of compressors, and the functions that all compressors share.

A compressor turns a layer of weights or gradients into a message, which usually has fewer bytes than float32 values.
The length of the message depends only on the number of values in the layer.

Shapes: W workers of this rank, n values of a layer, M bytes of a message. Each row of a matrix belongs to one worker.
The result for a row depends only on that row, so a worker sends the same bytes whichever process emulates it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from custom_fp.rounding import read_rounding, words
from torch import Tensor

from cpdrun.comm.sums.sum import RandomStream

# The rounding modes of compressors that send integer levels instead of values in a number format.
OF_LEVELS = ("nearest_even", "stochastic")


class Compressor(ABC):
    """A compressor C and its inverse, which process one layer at a time."""

    lossless = False
    """Whether decompress(compress(x)) equals x, bit for bit. A single process then skips both steps."""

    in_format = True
    """Whether values are sent in the run's number format."""

    @abstractmethod
    def message_bytes(self, n: int) -> int:
        """Return the number of bytes M for a layer of n > 0 values."""

    @abstractmethod
    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        """Compress the rows of a layer.

        Args:
            x_Wxn: The values, float32.
            keys: For each row, the key of its random numbers.

        Returns:
            The messages (W, M), uint8.
        """

    @abstractmethod
    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        """Return the decompressed rows (W, n), float32."""


def check_rounding(key: str, rounding: str, allowed: Sequence[str] = OF_LEVELS) -> None:
    """Raise ValueError if the rounding is not one of the allowed ones."""
    try:
        read_rounding(rounding, allowed)
    except ValueError:
        raise ValueError(f"{key} must be one of {words(allowed)}, not {rounding}") from None


def check_whole(key: str, value: int, most: int) -> None:
    """Raise ValueError if the value of a setting is not a whole number from 1 to `most`."""
    if isinstance(value, bool) or not (isinstance(value, int) and 1 <= value <= most):
        allowed = f"a whole number between 1 and {most}" if most > 1 else "1"
        raise ValueError(f"{key} must be {allowed}, not {value}")


def floats(data_WxM: Tensor) -> Tensor:
    """Reinterpret bytes (W, M) as float32 numbers (W, M / 4)."""
    return data_WxM.clone(memory_format=torch.contiguous_format).view(torch.float32)


def uniforms(like_Wxn: Tensor, keys: Sequence[tuple], rounding: str = "stochastic") -> Tensor:
    """Return uniform float32 random numbers in [0, 1), generated on the CPU.

    Each row has its own generator. With stochastic_N, the numbers are multiples of 2^-N.
    """
    drawn_Wxn = torch.empty(like_Wxn.shape)
    for row_n, key in zip(drawn_Wxn, keys, strict=True):
        torch.rand(len(row_n), generator=torch.Generator().manual_seed(RandomStream(key).seed()), out=row_n)
    return of_bits(drawn_Wxn.to(like_Wxn.device), rounding)


def of_bits(uniform: Tensor, rounding: str) -> Tensor:
    """Truncate uniform numbers in [0, 1) to the N bits of stochastic_N."""
    _, _, bits = read_rounding(rounding, OF_LEVELS)
    return uniform if bits is None else torch.floor(uniform * 2.0**bits) * 2.0**-bits
