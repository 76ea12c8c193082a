"""Codebooks with the compiled extension, csrc/scaled/, on the CPU; torch moves the bits of packed codes."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, get_num_threads

from custom_fp import _scaled
from custom_fp.formats.codebook import Codebook
from custom_fp.rounding import Rule
from custom_fp.scaled.blocks import single
from custom_fp.scaled.codebook import CodebookBlocks, tables_of
from custom_fp.scaled.search import search_of


class NativeCodebook(CodebookBlocks):
    def quantize(self, x: Tensor, fmt: Codebook, rule: Rule, out: Tensor, axis: int | None = None) -> None:
        if axis is None or fmt.block is None or not x.numel():
            super().quantize(x, fmt, rule, out)
            return
        x, shape = single(x), x.shape
        outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        if inner == 1:
            self.quantize_rows(x.view(outer, length), fmt, out.view(outer, length))
            return
        addresses, (tables, _) = (x.data_ptr(), out.data_ptr()), _tables(fmt)
        sizes = outer, length, inner, _block_size(fmt, length)
        _scaled.codebook_columns(*addresses, *sizes, tables, get_num_threads())

    def quantize_rows(self, x_RxN: Tensor, fmt: Codebook, out_RxN: Tensor) -> None:
        rows, n = x_RxN.shape
        addresses, (tables, _) = (x_RxN.data_ptr(), out_RxN.data_ptr()), _tables(fmt)
        _scaled.codebook_quantize(*addresses, rows, n, _block_size(fmt, n), tables, get_num_threads())

    def encode(
        self, x: Tensor, fmt: Codebook, codes: Tensor, scales: Tensor, axis: int | None = None
    ) -> None:
        if axis is None or fmt.block is None or not x.numel():
            super().encode(x, fmt, codes, scales, axis)
            return
        along = single(x).movedim(axis, -1).contiguous()
        codes_RxN, scales_RxB = torch.empty(along.shape, dtype=torch.uint8), self._scales(along, fmt)
        self._encode(along.view(-1, along.shape[-1]), fmt, codes_RxN, scales_RxB)
        codes.movedim(axis, -1).copy_(codes_RxN)
        scales.movedim(axis, -1).copy_(scales_RxB)

    def decode(
        self, codes: Tensor, scales: Tensor, fmt: Codebook, out: Tensor, axis: int | None = None
    ) -> None:
        if axis is None or fmt.block is None or not codes.numel():
            super().decode(codes, scales, fmt, out, axis)
            return
        along = codes.movedim(axis, -1).contiguous()
        found = torch.empty(along.shape)
        rows = along.view(-1, along.shape[-1])
        self._decode(rows, scales.movedim(axis, -1).contiguous(), fmt, found)
        out.movedim(axis, -1).copy_(found)

    def encode_flat(self, x_n: Tensor, fmt: Codebook, codes_n: Tensor, scales_B: Tensor) -> None:
        scales_B.zero_()  # of a tensor without elements, too
        self._encode(x_n.view(1, -1), fmt, codes_n, scales_B)

    def decode_flat(self, codes_n: Tensor, scales_B: Tensor, fmt: Codebook, out_n: Tensor) -> None:
        self._decode(codes_n.view(1, -1), scales_B, fmt, out_n)

    def _encode(self, x_RxN: Tensor, fmt: Codebook, codes: Tensor, scales: Tensor) -> None:
        (rows, n), (tables, _) = x_RxN.shape, _tables(fmt)
        addresses = x_RxN.data_ptr(), codes.data_ptr(), scales.data_ptr()
        _scaled.codebook_encode(*addresses, rows, n, _block_size(fmt, n), tables, get_num_threads())

    def _decode(self, codes_RxN: Tensor, scales: Tensor, fmt: Codebook, out: Tensor) -> None:
        (rows, n), values = codes_RxN.shape, tables_of(fmt, "cpu").values
        addresses = codes_RxN.data_ptr(), scales.data_ptr(), out.data_ptr()
        _scaled.codebook_decode(
            *addresses, rows, n, _block_size(fmt, n), values.data_ptr(), get_num_threads()
        )

    def _scales(self, x: Tensor, fmt: Codebook) -> Tensor:
        """For blocks along the last dimension."""
        return torch.empty((*x.shape[:-1], -(-x.shape[-1] // fmt.block)))

    def pack_flat(self, x_n: Tensor, fmt: Codebook, head: Tensor, body: Tensor) -> None:
        n, scales_B = x_n.numel(), torch.zeros(fmt.scales(x_n.numel()))
        if fmt.code_bits == 8:
            written = body[:n]
            self.encode_flat(x_n, fmt, written, scales_B)
        elif fmt.code_bits == 4 and (fmt.block or 0) % 2 == 0:
            written, (tables, _) = body[: (n + 1) // 2], _tables(fmt)
            addresses = x_n.data_ptr(), written.data_ptr(), scales_B.data_ptr()
            _scaled.codebook_pack_halves(*addresses, n, _block_size(fmt, n), tables, get_num_threads())
        else:
            super().pack_flat(x_n, fmt, head, body)
            return
        head.copy_(scales_B.view(torch.uint8))
        body[len(written) :].zero_()

    def unpack_flat(self, head: Tensor, body: Tensor, fmt: Codebook, out_n: Tensor) -> None:
        if fmt.code_bits != 4:
            super().unpack_flat(head, body, fmt, out_n)
            return
        codes_n = torch.empty(out_n.shape, dtype=torch.uint8)
        _scaled.split_halves(body.data_ptr(), codes_n.data_ptr(), out_n.numel(), get_num_threads())
        self.decode_flat(codes_n, head.clone().view(torch.float32), fmt, out_n)


def _block_size(fmt: Codebook, n: int) -> int:
    """Of the blocks that n values are cut in: no longer than there are values."""
    return max(1, min(fmt.block or n, n))


@cache
def _tables(fmt: Codebook) -> tuple[_scaled.CodebookTables, object]:
    """What the compiled functions take, and what keeps its memory."""
    search = search_of(fmt, "cpu")
    return _scaled.CodebookTables(*search.addresses(int), len(fmt.sorted_codes)), search


backend = NativeCodebook()
