"""Whole numbers of k bits each as dense bytes, a row at a time: little-endian bit order, as `custom_fp.pack` has it.

Legend: W rows, m numbers a row, k bits each.
"""

import torch
from torch import Tensor

from cpdrun.comm.wire.piece import ceil_div


def packed_bytes(m: int, bits: int) -> int:
    """Length of a row of m numbers."""
    return ceil_div(m * bits, 8)


def pack_codes(code_Wxm: Tensor, bits: int) -> Tensor:
    """(W, packed_bytes) uint8; code: int64 in 0 .. 2^bits - 1. Spare bits of the last byte are 0."""
    W, m = code_Wxm.shape
    if bits == 8:
        return code_Wxm.to(torch.uint8)
    place_k = torch.arange(bits, device=code_Wxm.device)
    bit_WxB = ((code_Wxm[:, :, None] >> place_k) & 1).to(torch.uint8).view(W, m * bits)
    bit_WxB = torch.nn.functional.pad(bit_WxB, (0, -(m * bits) % 8)).view(W, -1, 8)
    weight_8 = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=code_Wxm.device)
    return (bit_WxB * weight_8).sum(dim=2, dtype=torch.uint8)


def unpack_codes(data_WxM: Tensor, bits: int, m: int) -> Tensor:
    """(W, m) int64."""
    if bits == 8:
        return data_WxM[:, :m].long()
    W = len(data_WxM)
    place_8 = torch.arange(8, dtype=torch.uint8, device=data_WxM.device)
    bit_WxB = ((data_WxM[:, :, None] >> place_8) & 1).view(W, -1)[:, : m * bits].view(W, m, bits)
    return (bit_WxB.long() << torch.arange(bits, device=data_WxM.device)).sum(dim=2)
