"""The compiled side of scaled.py, for tensors on the CPU: codebooks (csrc/codebook.h) and MX (csrc/cpu_blocks.h).

Same functions and same results as scaled_torch.py, which takes what is left: the bits of packed codebooks.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor, get_num_threads

from custom_fp import _codebook, _native, scaled_torch
from custom_fp.formats.block import BlockFormat
from custom_fp.formats.codebook import Codebook
from custom_fp.formats.names import ScaledFormat
from custom_fp.scaled_torch import tables_of


def quantize_rows(x_RxN: Tensor, fmt: ScaledFormat, out_RxN: Tensor) -> None:
    """Each row as a tensor of its own; both may be the same memory."""
    rows, n = x_RxN.shape
    if isinstance(fmt, Codebook):
        arguments, _ = _tables(fmt)
        size = _block_size(fmt, n)
        addresses = x_RxN.data_ptr(), out_RxN.data_ptr()
        _codebook.quantize(*addresses, rows, n, size, *arguments, get_num_threads())
    else:
        _native.quantize_blocks(x_RxN.data_ptr(), out_RxN.data_ptr(), rows, n, *_blocks(fmt, n))


def encode(x_n: Tensor, fmt: ScaledFormat, codes_n: Tensor, scales_B: Tensor) -> None:
    n = x_n.numel()
    if isinstance(fmt, Codebook):
        scales_B.zero_()  # of a tensor without elements, too
        arguments, _ = _tables(fmt)
        addresses = x_n.data_ptr(), codes_n.data_ptr(), scales_B.data_ptr()
        _codebook.encode(*addresses, n, _block_size(fmt, n), *arguments, get_num_threads())
    else:
        _encode_blocks(x_n, fmt, scales_B, codes_n, dense=False)


def decode(codes_n: Tensor, scales_B: Tensor, fmt: ScaledFormat, out_n: Tensor) -> None:
    n = codes_n.numel()
    if isinstance(fmt, Codebook):
        values = tables_of(fmt, "cpu").values
        _codebook.decode(
            codes_n.data_ptr(),
            scales_B.data_ptr(),
            out_n.data_ptr(),
            n,
            _block_size(fmt, n),
            values.data_ptr(),
            get_num_threads(),
        )
    else:
        _decode_blocks(scales_B, codes_n, fmt, out_n, dense=False)


def pack(x_n: Tensor, fmt: ScaledFormat, head: Tensor, body: Tensor) -> None:
    if isinstance(fmt, Codebook) and fmt.code_bits == 8:
        scales_B = torch.empty(fmt.scales(x_n.numel()))
        encode(x_n, fmt, body[: x_n.numel()], scales_B)
        head.copy_(scales_B.view(torch.uint8))
        body[x_n.numel() :].zero_()
    elif isinstance(fmt, Codebook):
        scaled_torch.pack(x_n, fmt, head, body, encode)
    else:
        _encode_blocks(x_n, fmt, head, body, dense=True)


def unpack(head: Tensor, body: Tensor, fmt: ScaledFormat, out_n: Tensor) -> None:
    if isinstance(fmt, Codebook):
        scaled_torch.unpack(head, body, fmt, out_n, decode)
    else:
        _decode_blocks(head, body, fmt, out_n, dense=True)


def _block_size(fmt: ScaledFormat, n: int) -> int:
    """Of the blocks that n values are cut in: no longer than there are values."""
    return max(1, min(fmt.block or n, n))


# ---- MX


def _blocks(fmt: BlockFormat, n: int) -> tuple[int, int, int, int]:
    """The last arguments of the compiled functions for n values."""
    size = _block_size(fmt, n)
    return size, 0 if fmt.element is None else fmt.element.spec, fmt.emax, get_num_threads()


def _encode_blocks(x_n: Tensor, fmt: BlockFormat, scales_B: Tensor, codes: Tensor, dense: bool) -> None:
    _native.encode_blocks(
        x_n.data_ptr(), scales_B.data_ptr(), codes.data_ptr(), dense, x_n.numel(), *_blocks(fmt, x_n.numel())
    )


def _decode_blocks(scales_B: Tensor, codes: Tensor, fmt: BlockFormat, out_n: Tensor, dense: bool) -> None:
    n = out_n.numel()
    _native.decode_blocks(scales_B.data_ptr(), codes.data_ptr(), dense, out_n.data_ptr(), n, *_blocks(fmt, n))


# ---- codebooks


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
