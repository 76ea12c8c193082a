"""Sparsification to the largest values of a layer (Stich et al., arXiv 1809.07599, definition 2.1).

A message contains k = ceil(keep * n) values, rounded and packed as in `rounded_values.py`, and their indices of
ceil(log2 n) bits each, in ascending order. Among equal magnitudes, the values with the lowest indices are sent. NaN
counts as infinity, which is larger than all numbers.

Byte counts include the packed values and the packed indices. Some papers count differently: the code of arXiv
2111.09389 sends indices in the format of the values and counts one byte for each.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.bitpack import pack_codes, packed_bytes, unpack_codes
from cpdrun.comm.compressors.rounded_values import Rounded

LONG = 2**15


class TopK(Compressor):
    """Sends the values of each row with the largest magnitudes.

    Args:
        keep: The fraction of the values that is sent, above 0 and at most 1.
        format: The format of the values.
        aps: Whether the values are scaled with auto-precision scaling (APS).
        rounding: The rounding of the values.

    Raises:
        ValueError: The fraction is out of range.
    """

    def __init__(self, keep: float, format: str, aps: bool, rounding: str):
        if not (isinstance(keep, int | float) and 0 < keep <= 1):
            raise ValueError(f"compressor.keep must be above 0 and at most 1, not {keep}")
        self.keep, self.aps = keep, aps
        self.values = Rounded(format, aps, rounding)

    def kept(self, n: int) -> int:
        """Return the number k of values that are sent for a layer of n values. It is at least 1."""
        return min(n, max(1, math.ceil(self.keep * n)))

    def message_bytes(self, n: int) -> int:
        k = self.kept(n)
        return self.values.message_bytes(k) + packed_bytes(k, _index_bits(n))

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        index_Wxk = largest(x_Wxn, self.kept(x_Wxn.shape[1]))
        values = self.values.compress(x_Wxn.gather(1, index_Wxk), keys)
        return torch.cat([values, pack_codes(index_Wxk, _index_bits(x_Wxn.shape[1]))], dim=1)

    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        k = self.kept(n)
        begin = self.values.message_bytes(k)
        value_Wxk = self.values.decompress(data_WxM[:, :begin], k)
        index_Wxk = unpack_codes(data_WxM[:, begin:], _index_bits(n), k)
        return value_Wxk.new_zeros(len(data_WxM), n).scatter_(1, index_Wxk, value_Wxk)


def largest(x_Wxn: Tensor, k: int) -> Tensor:
    """Return the positions (W, k), int64, of each row's k largest magnitudes, in ascending order.

    Among equal magnitudes, the first ones are chosen.
    """
    size_Wxn = x_Wxn.abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    least_Wx1 = torch.stack([_kth_largest(size_n, k) for size_n in size_Wxn])[:, None]
    W, taken_Wxn = len(x_Wxn), size_Wxn >= least_Wx1
    index = taken_Wxn.nonzero()[:, 1]
    if len(index) > W * k:  # More values equal the k-th largest magnitude than are needed.
        equal_Wxn = size_Wxn == least_Wx1
        room_Wx1 = k - (taken_Wxn & ~equal_Wxn).sum(dim=1, keepdim=True)
        index = (taken_Wxn & ~(equal_Wxn & (equal_Wxn.cumsum(dim=1) > room_Wx1))).nonzero()[:, 1]
    return index.view(W, k)


def _kth_largest(size_n: Tensor, k: int) -> Tensor:
    """Return the k-th largest of n non-negative values as a 0-d tensor.

    The bit patterns of non-negative floats have the same order as the floats. In long rows, a histogram of the upper
    half of the bits is computed first, so that only the values in the bin of the k-th largest value are sorted.
    """
    if len(size_n) < LONG:
        return size_n.topk(k, sorted=False).values.amin()
    upper_n = size_n.view(torch.int32) >> 16
    from_top = torch.bincount(upper_n, minlength=2**15).flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, k))
    larger = int(from_top[place - 1]) if place else 0
    return size_n[upper_n == 2**15 - 1 - place].topk(k - larger, sorted=False).values.amin()


def _index_bits(n: int) -> int:
    return max(1, (n - 1).bit_length())
