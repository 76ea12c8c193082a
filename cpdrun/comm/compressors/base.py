"""What a worker sends of a layer, weights or gradients: few bytes, of a number that depends on the layer's size alone.

Legend: W workers of this rank, n values of a layer, M bytes of a message. A row of a matrix is one worker's, and what
becomes of it depends on that row alone, not on how many rows there are: so a worker sends the same bytes in
whichever process it is played.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from custom_fp.rounding import read_rounding, words
from torch import Tensor

from cpdrun.comm.sums.sum import RandomStream

OF_LEVELS = ("nearest_even", "stochastic")  # that no format has


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


def check_rounding(key: str, rounding: str, allowed: Sequence[str] = OF_LEVELS) -> None:
    """One of `custom_fp`, of these. Raises ValueError."""
    try:
        read_rounding(rounding, allowed)
    except ValueError:
        raise ValueError(f"{key} must be one of {words(allowed)}, not {rounding}") from None


def check_whole(key: str, value: int, most: int) -> None:
    if isinstance(value, bool) or not (isinstance(value, int) and 1 <= value <= most):
        allowed = f"a whole number between 1 and {most}" if most > 1 else "1"
        raise ValueError(f"{key} must be {allowed}, not {value}")


def floats(data_WxM: Tensor) -> Tensor:
    """(W, M / 4) float32: the numbers that these bytes, 4 each, are."""
    return data_WxM.clone(memory_format=torch.contiguous_format).view(torch.float32)


def uniforms(like_Wxn: Tensor, keys: Sequence[tuple], rounding: str = "stochastic") -> Tensor:
    """Uniform float32 numbers in [0, 1), each row's from a generator of its own, drawn on the CPU; multiples of 2^-N
    for stochastic_N."""
    drawn_Wxn = torch.empty(like_Wxn.shape)
    for row_n, key in zip(drawn_Wxn, keys, strict=True):
        torch.rand(len(row_n), generator=torch.Generator().manual_seed(RandomStream(key).seed()), out=row_n)
    return of_bits(drawn_Wxn.to(like_Wxn.device), rounding)


def of_bits(uniform: Tensor, rounding: str) -> Tensor:
    """Uniform numbers in [0, 1), cut off after the N bits of stochastic_N."""
    _, _, bits = read_rounding(rounding, OF_LEVELS)
    return uniform if bits is None else torch.floor(uniform * 2.0**bits) * 2.0**-bits
