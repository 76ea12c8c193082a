"""A format with scales in plain torch, on any device: what is left when a kind says what becomes of blocks.

Functions take dense tensors, float32 or float64, and write where the caller says.
Legend: n elements in B blocks of K, the last one filled up with zeros; R rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import pad

from custom_fp import operators
from custom_fp.checks import scale_dtype
from custom_fp.formats.protocol import NumberFormat
from custom_fp.reference import write
from custom_fp.rule import Rule

Encoded = tuple[Tensor, Tensor]  # codes or values of elements (B, K), scales (B,)


class Blocks(ABC):
    """A backend (see operators.py): quantize, encode, decode, pack and unpack."""

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

    def encode(self, x: Tensor, fmt: NumberFormat, codes: Tensor, scales_B: Tensor) -> None:
        self.encode_flat(single(x).view(-1), fmt, codes.view(-1), scales_B)

    def decode(self, codes: Tensor, scales_B: Tensor, fmt: NumberFormat, out: Tensor) -> None:
        self.decode_flat(codes.view(-1), scales_B, fmt, out.view(-1))

    def pack(self, x: Tensor, fmt: NumberFormat, shift: int, rule: Rule, out: Tensor) -> None:
        self.pack_flat(single(x).view(-1), fmt, *_parts(out, fmt, x.numel()))

    def unpack(self, data: Tensor, fmt: NumberFormat, shift: int, out: Tensor) -> None:
        self.unpack_flat(*_parts(data, fmt, out.numel()), fmt, out.view(-1))

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
        body.copy_(self.pack_codes(codes_n, fmt))

    def unpack_flat(self, head: Tensor, body: Tensor, fmt: NumberFormat, out_n: Tensor) -> None:
        scales_B = head.clone().view(scale_dtype(fmt))  # a view of another dtype needs an aligned start
        self.decode_flat(self.unpack_codes(body, out_n.numel(), fmt).contiguous(), scales_B, fmt, out_n)

    # ---- bits

    def pack_codes(self, codes_n: Tensor, fmt: NumberFormat) -> Tensor:
        """ceil(n / 8) * k bytes: 8 codes in k bytes, code j from bit j * k on, little-endian."""
        bits, padded = fmt.code_bits, pad(codes_n, (0, -codes_n.numel() % 8))
        if bits == 8:
            return padded
        if bits == 4:
            return padded[0::2] | padded[1::2] << 4
        digits = (padded[:, None] >> _places(bits, codes_n.device)) & 1
        return (digits.view(-1, 8) << _places(8, codes_n.device)).sum(1, dtype=torch.uint8)

    def unpack_codes(self, data: Tensor, n: int, fmt: NumberFormat) -> Tensor:
        bits = fmt.code_bits
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
