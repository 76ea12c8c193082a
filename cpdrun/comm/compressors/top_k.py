"""The largest values of a layer, with their places: sparsification (Stich et al., arXiv 1809.07599, definition 2.1).

A message holds k = ceil(keep * n) values, rounded and packed as `rounded.py` does, and their indices of
ceil(log2 n) bits each, ascending. Of equal magnitudes the lower index goes first; NaN counts as inf:
larger than all numbers.

What differs from the papers that count it: values and indices are counted as they are packed, where arXiv 2111.09389's
code sends indices in the format of the values and counts a byte for each.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.bitpack import pack_codes, packed_bytes, unpack_codes
from cpdrun.comm.compressors.rounded import Rounded

LONG = 2**15


class TopK(Compressor):
    """keep: the fraction sent, above 0 and at most 1; format, aps and rounding are those of the values.

    Raises ValueError for a fraction out of range.
    """

    def __init__(self, keep: float, format: str, aps: bool, rounding: str):
        if not (isinstance(keep, int | float) and 0 < keep <= 1):
            raise ValueError(f"compressor.keep must be above 0 and at most 1, not {keep}")
        self.keep, self.aps = keep, aps
        self.values = Rounded(format, aps, rounding)

    def kept(self, n: int) -> int:
        """k; at least one value."""
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
    """(W, k) int64: where each row's k largest magnitudes are, ascending; of equal ones, the first."""
    size_Wxn = x_Wxn.abs().nan_to_num_(nan=torch.inf, posinf=torch.inf)
    least_Wx1 = torch.stack([_kth_largest(size_n, k) for size_n in size_Wxn])[:, None]
    W, taken_Wxn = len(x_Wxn), size_Wxn >= least_Wx1
    index = taken_Wxn.nonzero()[:, 1]
    if len(index) > W * k:  # more values equal the least than there is room for
        equal_Wxn = size_Wxn == least_Wx1
        room_Wx1 = k - (taken_Wxn & ~equal_Wxn).sum(dim=1, keepdim=True)
        index = (taken_Wxn & ~(equal_Wxn & (equal_Wxn.cumsum(dim=1) > room_Wx1))).nonzero()[:, 1]
    return index.view(W, k)


def _kth_largest(size_n: Tensor, k: int) -> Tensor:
    """0-d. The bits of floats from 0 on are in their order: the values of a long row are counted by the upper half of
    them, and those of one count alone are sorted."""
    if len(size_n) < LONG:
        return size_n.topk(k, sorted=False).values.amin()
    upper_n = size_n.view(torch.int32) >> 16
    from_top = torch.bincount(upper_n, minlength=2**15).flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, k))
    larger = int(from_top[place - 1]) if place else 0
    return size_n[upper_n == 2**15 - 1 - place].topk(k - larger, sorted=False).values.amin()


def _index_bits(n: int) -> int:
    return max(1, (n - 1).bit_length())
