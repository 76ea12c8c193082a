"""A format with scales in plain torch, on any device: what is left when a kind says what becomes of blocks.

Functions take dense tensors, float32 or float64, and write where the caller says.
Legend: n elements in B blocks of K, the last one filled up with zeros; R rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import pad

from custom_fp.formats.layout import Layout
from custom_fp.formats.protocol import NumberFormat
from custom_fp.operators import table as operators
from custom_fp.operators.checks import scale_dtype
from custom_fp.reference import write
from custom_fp.rounding import Rule

Encoded = tuple[Tensor, Tensor]  # codes or values of elements (B, K), scales (B,)


class Blocks(ABC):
    """A backend (see operators/table.py): quantize, encode, decode, pack and unpack."""

    @abstractmethod
    def encode_blocks(self, fmt: NumberFormat, x_BxK: Tensor, largest_B: Tensor) -> Encoded:
        """largest_B: the largest magnitude of each block, NaN where it holds one."""

    @abstractmethod
    def decode_blocks(self, fmt: NumberFormat, codes_BxK: Tensor, scales_B: Tensor) -> Tensor: ...

    def round_blocks(self, fmt: NumberFormat, x_BxK: Tensor, largest_B: Tensor) -> Tensor:
        """decode(encode(x)), where there is no shorter way."""
        return self.decode_blocks(fmt, *self.encode_blocks(fmt, x_BxK, largest_B))

    # ---- the functions of a backend

    def quantize(
        self, x: Tensor, fmt: NumberFormat, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        """axis: that blocks run along; None: as x lies in memory, which is what a scale for all of it comes to."""
        x = single(x)
        if axis is None or fmt.block is None:
            self.quantize_rows(x.view(1, -1), fmt, out.view(1, -1))
        elif x.numel():
            along = x.movedim(axis, -1)
            x_RxN = along.reshape(-1, along.shape[-1]).contiguous()
            out_RxN = torch.empty_like(x_RxN)
            self.quantize_rows(x_RxN, fmt, out_RxN)
            out.movedim(axis, -1).copy_(out_RxN.view(along.shape))

    def encode(
        self, x: Tensor, fmt: NumberFormat, codes: Tensor, scales: Tensor, axis: int | None = None
    ) -> None:
        if axis is None or fmt.block is None:
            self.encode_flat(single(x).view(-1), fmt, codes.view(-1), scales)
        elif x.numel():
            layout = fmt.layout(x.shape, axis)
            x_BxK = to_blocks(single(x), layout)
            codes_BxK, scales_B = self.encode_blocks(fmt, x_BxK, x_BxK.abs().amax(1))
            codes.copy_(from_blocks(codes_BxK, layout).view(x.shape))
            scales.copy_(scales_B.view(layout.shape))

    def decode(
        self, codes: Tensor, scales: Tensor, fmt: NumberFormat, out: Tensor, axis: int | None = None
    ) -> None:
        if axis is None or fmt.block is None:
            self.decode_flat(codes.view(-1), scales, fmt, out.view(-1))
        elif codes.numel():
            layout = fmt.layout(codes.shape, axis)
            values_BxK = self.decode_blocks(fmt, to_blocks(codes, layout), scales.reshape(-1))
            write(from_blocks(values_BxK, layout).view(codes.shape), out)

    def pack(
        self, x: Tensor, fmt: NumberFormat, shift: int, rule: Rule, out: Tensor, axis: int | None = None
    ) -> None:
        if axis is None or fmt.block is None:
            self.pack_flat(single(x).view(-1), fmt, *_parts(out, fmt, x.numel()))
            return
        layout = fmt.layout(x.shape, axis)
        codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        scales = torch.empty(layout.shape, dtype=scale_dtype(fmt), device=x.device)
        self.encode(x, fmt, codes, scales, axis)
        out[: scales.nbytes].copy_(scales.view(-1).view(torch.uint8))
        out[scales.nbytes :].copy_(join_codes(codes.view(-1), fmt.code_bits))

    def unpack(
        self, data: Tensor, fmt: NumberFormat, shift: int, out: Tensor, axis: int | None = None
    ) -> None:
        if axis is None or fmt.block is None:
            self.unpack_flat(*_parts(data, fmt, out.numel()), fmt, out.view(-1))
            return
        layout = fmt.layout(out.shape, axis)
        head = layout.scales * fmt.scale_bits // 8
        scales = data[:head].clone().view(scale_dtype(fmt)).view(layout.shape)
        codes = split_codes(data[head:], out.numel(), fmt.code_bits).contiguous().view(out.shape)
        self.decode(codes, scales, fmt, out, axis)

    # ---- of float32 values in a row

    def quantize_rows(self, x_RxN: Tensor, fmt: NumberFormat, out_RxN: Tensor) -> None:
        """Each row as a tensor of its own; both may be the same memory."""
        rows, n = x_RxN.shape
        if n == 0 or rows == 0:
            return
        block = min(fmt.block or n, n)
        x_BxK = pad(x_RxN, (0, -n % block)).view(-1, block)
        write(self.round_blocks(fmt, x_BxK, x_BxK.abs().amax(1)).view(rows, -1)[:, :n], out_RxN)

    def encode_flat(self, x_n: Tensor, fmt: NumberFormat, codes_n: Tensor, scales_B: Tensor) -> None:
        x_BxK = _in_blocks(x_n, fmt)
        largest_B = x_BxK.abs().amax(1) if x_n.numel() else x_n.new_zeros(x_BxK.shape[0])
        codes_BxK, found_B = self.encode_blocks(fmt, x_BxK, largest_B)
        codes_n.copy_(codes_BxK.reshape(-1)[: x_n.numel()])
        scales_B.copy_(found_B)

    def decode_flat(self, codes_n: Tensor, scales_B: Tensor, fmt: NumberFormat, out_n: Tensor) -> None:
        values_BxK = self.decode_blocks(fmt, _in_blocks(codes_n, fmt), scales_B)
        write(values_BxK.reshape(-1)[: codes_n.numel()], out_n)

    def pack_flat(self, x_n: Tensor, fmt: NumberFormat, head: Tensor, body: Tensor) -> None:
        """head: the scales' bytes; body: the packed codes."""
        codes_n = torch.empty(x_n.shape, dtype=torch.uint8, device=x_n.device)
        scales_B = torch.empty(fmt.scales(x_n.numel()), dtype=scale_dtype(fmt), device=x_n.device)
        self.encode_flat(x_n, fmt, codes_n, scales_B)
        head.copy_(scales_B.view(torch.uint8))
        body.copy_(join_codes(codes_n, fmt.code_bits))

    def unpack_flat(self, head: Tensor, body: Tensor, fmt: NumberFormat, out_n: Tensor) -> None:
        scales_B = head.clone().view(scale_dtype(fmt))  # a view of another dtype needs an aligned start
        self.decode_flat(split_codes(body, out_n.numel(), fmt.code_bits).contiguous(), scales_B, fmt, out_n)


def to_blocks(x: Tensor, layout: Layout) -> Tensor:
    """(B, K) of a tensor, dense."""
    height, width = layout.height, layout.width
    planes = x.reshape(layout.planes, layout.rows, layout.columns)
    planes = pad(planes, (0, -layout.columns % width, 0, -layout.rows % height))
    tiles = planes.unflatten(2, (-1, width)).unflatten(1, (-1, height)) if planes.numel() else planes
    if not planes.numel():
        return x.new_empty(layout.scales, 0)
    return tiles.transpose(2, 3).reshape(-1, height * width)


def from_blocks(blocks_BxK: Tensor, layout: Layout) -> Tensor:
    """The tensor of these blocks, (planes, rows, columns)."""
    height, width = layout.height, layout.width
    down, across = -(-layout.rows // height), -(-layout.columns // width)
    tiles = blocks_BxK.view(layout.planes, down, across, height, width).transpose(2, 3)
    return tiles.reshape(layout.planes, down * height, across * width)[:, : layout.rows, : layout.columns]


def join_codes(codes_n: Tensor, bits: int) -> Tensor:
    """ceil(n / 8) * k bytes: 8 codes in k bytes, code j from bit j * k on, little-endian."""
    padded = pad(codes_n, (0, -codes_n.numel() % 8))
    if bits == 8:
        return padded
    if bits == 4:
        return padded[0::2] | padded[1::2] << 4
    digits = (padded[:, None] >> _places(bits, codes_n.device)) & 1
    return (digits.view(-1, 8) << _places(8, codes_n.device)).sum(1, dtype=torch.uint8)


def split_codes(data: Tensor, n: int, bits: int) -> Tensor:
    """The first n codes of such bytes."""
    if bits == 8:
        return data[:n]
    if bits == 4:
        return torch.stack([data & 15, data >> 4], dim=1).view(-1)[:n]
    digits = (data[:, None] >> _places(8, data.device)) & 1
    return (digits.view(-1, bits) << _places(bits, data.device)).sum(1, dtype=torch.uint8)[:n]


def single(x: Tensor) -> Tensor:
    """Rounded to float32, for scales are taken from that."""
    if x.dtype is torch.float64:  # torch's own conversion follows the caller's flush-to-zero setting
        return operators.quantize.compute(x.detach(), "fp32")
    return x.detach()


def _parts(data: Tensor, fmt: NumberFormat, n: int) -> tuple[Tensor, Tensor]:
    """The bytes of the scales, and those of the codes."""
    head = fmt.scales(n) * fmt.scale_bits // 8
    return data[:head], data[head:]


def _in_blocks(x_n: Tensor, fmt: NumberFormat) -> Tensor:
    """(B, K), the last block filled up with zeros."""
    if fmt.block is None or fmt.block > x_n.numel() > 0:
        return x_n.reshape(1, -1)
    blocks = fmt.scales(x_n.numel())
    if missing := blocks * fmt.block - x_n.numel():
        x_n = pad(x_n, (0, missing))
    return x_n.reshape(blocks, fmt.block)


def _places(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, dtype=torch.uint8, device=device)
