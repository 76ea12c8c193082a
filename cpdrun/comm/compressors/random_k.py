"""Sparsification to random elements of a layer (Stich et al., arXiv 1809.07599, definition 2.1).

See also Koloskova et al., arXiv 1902.00340, section 3.5. A message contains a seed of 8 bytes and k = ceil(keep * n)
values, which are rounded and packed as in `rounded_values.py`. The receiver generates the k positions again from the
seed, so no indices are sent. The positions do not depend on the values. This compressor is the baseline for `top_k`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.sums.sum import RandomStream

SEED_BYTES = 8


class RandomK(TopK):
    """Sends random elements of each row.

    If a row contains inf or NaN, all its sent values become NaN, so that divergence stays visible.

    Args:
        keep: The fraction of the elements that is sent, above 0 and at most 1.
        unbiased: Whether the sent values are multiplied by n / k, so that the expectation of the decompressed layer is
            the layer. This increases the error. Error feedback and CHOCO-SGD need unbiased=False.
        format: The format of the values.
        aps: Whether the values are scaled with auto-precision scaling (APS).
        rounding: The rounding of the values.

    Raises:
        ValueError: The fraction is out of range.
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
        """Return the random positions (W, k), int64, in ascending order. They are generated on the CPU."""
        rows = [
            torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: self.kept(n)].sort().values
            for seed in seed_W.tolist()
        ]
        return torch.stack(rows)
