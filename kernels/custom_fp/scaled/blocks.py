"""Cut tensors into the blocks that share a scale, and pack codes into dense bytes, in PyTorch on any device.

Shapes: n elements in B blocks of K. Blocks at an edge are padded with zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from custom_fp.formats.layout import Layout
from custom_fp.operators import table as operators


def to_blocks(x: Tensor, layout: Layout) -> Tensor:
    """Return the blocks of a tensor as one dense tensor of shape (B, K)."""
    height, width = layout.height, layout.width
    planes = x.reshape(layout.planes, layout.rows, layout.columns)
    planes = pad(planes, (0, -layout.columns % width, 0, -layout.rows % height))
    tiles = planes.unflatten(2, (-1, width)).unflatten(1, (-1, height)) if planes.numel() else planes
    if not planes.numel():
        return x.new_empty(layout.scales, 0)
    return tiles.transpose(2, 3).reshape(-1, height * width)


def from_blocks(blocks_BxK: Tensor, layout: Layout) -> Tensor:
    """Return the tensor that consists of the given blocks, of shape (planes, rows, columns)."""
    height, width = layout.height, layout.width
    down, across = -(-layout.rows // height), -(-layout.columns // width)
    tiles = blocks_BxK.view(layout.planes, down, across, height, width).transpose(2, 3)
    return tiles.reshape(layout.planes, down * height, across * width)[:, : layout.rows, : layout.columns]


def join_codes(codes_n: Tensor, bits: int) -> Tensor:
    """Return codes of k bits as ceil(n / 8) * k bytes. Code j begins at bit j * k, little-endian."""
    padded = pad(codes_n, (0, -codes_n.numel() % 8))
    if bits == 8:
        return padded
    if bits == 4:
        return padded[0::2] | padded[1::2] << 4
    digits = (padded[:, None] >> _places(bits, codes_n.device)) & 1
    return (digits.view(-1, 8) << _places(8, codes_n.device)).sum(1, dtype=torch.uint8)


def split_codes(data: Tensor, n: int, bits: int) -> Tensor:
    """Return the first n codes of the bytes that `join_codes` returned."""
    if bits == 8:
        return data[:n]
    if bits == 4:
        return torch.stack([data & 15, data >> 4], dim=1).view(-1)[:n]
    digits = (data[:, None] >> _places(8, data.device)) & 1
    return (digits.view(-1, bits) << _places(bits, data.device)).sum(1, dtype=torch.uint8)[:n]


def single(x: Tensor) -> Tensor:
    """Round x to float32, the dtype in which scales are computed."""
    if x.dtype is torch.float64:  # PyTorch's own conversion depends on the caller's flush-to-zero setting
        return operators.quantize.compute(x.detach(), "fp32")
    return x.detach()


def _places(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, dtype=torch.uint8, device=device)
