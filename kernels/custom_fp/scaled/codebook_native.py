"""Codebooks with the compiled extension, csrc/codebook.h, on the CPU; torch moves the bits of packed codes."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, get_num_threads

from custom_fp import _codebook
from custom_fp.formats.codebook import Codebook
from custom_fp.scaled.codebook import CodebookBlocks, tables_of


class NativeCodebook(CodebookBlocks):
    def quantize_rows(self, x_RxN: Tensor, fmt: Codebook, out_RxN: Tensor) -> None:
        rows, n = x_RxN.shape
        arguments, _ = _tables(fmt)
        addresses = x_RxN.data_ptr(), out_RxN.data_ptr()
        _codebook.quantize(*addresses, rows, n, _block_size(fmt, n), *arguments, get_num_threads())

    def encode_flat(self, x_n: Tensor, fmt: Codebook, codes_n: Tensor, scales_B: Tensor) -> None:
        n = x_n.numel()
        scales_B.zero_()  # of a tensor without elements, too
        arguments, _ = _tables(fmt)
        addresses = x_n.data_ptr(), codes_n.data_ptr(), scales_B.data_ptr()
        _codebook.encode(*addresses, n, _block_size(fmt, n), *arguments, get_num_threads())

    def decode_flat(self, codes_n: Tensor, scales_B: Tensor, fmt: Codebook, out_n: Tensor) -> None:
        n, values = codes_n.numel(), tables_of(fmt, "cpu").values
        addresses = codes_n.data_ptr(), scales_B.data_ptr(), out_n.data_ptr()
        _codebook.decode(*addresses, n, _block_size(fmt, n), values.data_ptr(), get_num_threads())

    def pack_flat(self, x_n: Tensor, fmt: Codebook, head: Tensor, body: Tensor) -> None:
        if fmt.code_bits != 8:
            super().pack_flat(x_n, fmt, head, body)
            return
        n = x_n.numel()
        scales_B = torch.empty(fmt.scales(n))
        self.encode_flat(x_n, fmt, body[:n], scales_B)
        head.copy_(scales_B.view(torch.uint8))
        body[n:].zero_()


def _block_size(fmt: Codebook, n: int) -> int:
    """Of the blocks that n values are cut in: no longer than there are values."""
    return max(1, min(fmt.block or n, n))


@cache
def _tables(fmt: Codebook) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """The last arguments of the compiled functions, and the tensors behind them."""
    tables = tables_of(fmt, "cpu")
    thresholds = torch.full((256,), math.inf)
    thresholds[: len(tables.thresholds)] = tables.thresholds
    top = torch.arange(1 << 16, dtype=torch.int64)
    ends = [(top << 16 | low).to(torch.int32).view(torch.float32) for low in (0, 0xFFFF)]
    counts = torch.stack([torch.bucketize(end.nan_to_num(math.inf), tables.thresholds) for end in ends])
    first = counts.amin(0)
    steps = int((counts.amax(0) - first)[torch.isfinite(ends[0])].max())
    memory = (first.to(torch.uint8), thresholds, tables.codes, tables.ascending)
    return (*(tensor.data_ptr() for tensor in memory), steps), memory


backend = NativeCodebook()
