"""Values of a layer drawn at random, with the seed of the draw: sparsification (Stich et al., arXiv 1809.07599,
definition 2.1; Koloskova et al., arXiv 1902.00340, section 3.5).

A message holds a seed of 8 bytes, from which the receiver draws the k = ceil(keep * n) places again, and the values
there, rounded and packed as `rounded.py` does. It knows nothing of the values: where `top_k` sends the largest,
this is the baseline that costs no sorting and no indices.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.sums.sum import RandomStream

SEED_BYTES = 8


class RandomK(TopK):
    """keep: the fraction sent, above 0 and at most 1. unbiased: times n / k, so that the mean over all draws is the
    layer; it makes the error larger, and error feedback and CHOCO-SGD want it off.

    A row with inf or NaN anywhere sends NaN throughout, so that a diverged run stays visible. Raises ValueError for a
    fraction out of range.
    """

    def __init__(self, keep: float, unbiased: bool, format: str, aps: bool, rounding: str):
        super().__init__(keep, format, aps, rounding)
        self.unbiased = unbiased

    def message_bytes(self, n: int) -> int:
        return SEED_BYTES + self.values.message_bytes(self.kept(n))

    def compress(self, x_Wxn: Tensor, keys: Sequence[tuple]) -> Tensor:
        seed_W = torch.tensor([RandomStream(("places", *key)).seed() for key in keys])
        value_Wxk = x_Wxn.gather(1, self._places(seed_W, x_Wxn.shape[1]).to(x_Wxn.device))
        if self.unbiased:
            value_Wxk = value_Wxk * (x_Wxn.shape[1] / value_Wxk.shape[1])
        whole_Wx1 = torch.isfinite(x_Wxn).all(dim=1, keepdim=True)
        value_Wxk = torch.where(whole_Wx1, value_Wxk, torch.nan)
        head_Wx8 = seed_W[:, None].view(torch.uint8).to(x_Wxn.device)
        return torch.cat([head_Wx8, self.values.compress(value_Wxk, keys)], dim=1)

    def decompress(self, data_WxM: Tensor, n: int) -> Tensor:
        seed_W = data_WxM[:, :SEED_BYTES].clone(memory_format=torch.contiguous_format).view(torch.int64)[:, 0]
        value_Wxk = self.values.decompress(data_WxM[:, SEED_BYTES:], self.kept(n))
        place_Wxk = self._places(seed_W, n).to(data_WxM.device)
        return value_Wxk.new_zeros(len(data_WxM), n).scatter_(1, place_Wxk, value_Wxk)

    def _places(self, seed_W: Tensor, n: int) -> Tensor:
        """(W, k) int64, ascending; drawn on the CPU."""
        rows = [
            torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: self.kept(n)].sort().values
            for seed in seed_W.tolist()
        ]
        return torch.stack(rows)
