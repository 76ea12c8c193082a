"""MX with the compiled extension, csrc/cpu_blocks.h, on the CPU."""

from __future__ import annotations

from torch import Tensor, get_num_threads

from custom_fp import _native
from custom_fp.formats.block import BlockFormat
from custom_fp.scaled.mx import MxBlocks


class NativeMx(MxBlocks):
    def quantize_rows(self, x_RxN: Tensor, fmt: BlockFormat, out_RxN: Tensor) -> None:
        rows, n = x_RxN.shape
        _native.quantize_blocks(x_RxN.data_ptr(), out_RxN.data_ptr(), rows, n, *_blocks(fmt, n))

    def encode_flat(self, x_n: Tensor, fmt: BlockFormat, codes_n: Tensor, scales_B: Tensor) -> None:
        _encode(x_n, fmt, scales_B, codes_n, dense=False)

    def decode_flat(self, codes_n: Tensor, scales_B: Tensor, fmt: BlockFormat, out_n: Tensor) -> None:
        _decode(scales_B, codes_n, fmt, out_n, dense=False)

    def pack_flat(self, x_n: Tensor, fmt: BlockFormat, head: Tensor, body: Tensor) -> None:
        _encode(x_n, fmt, head, body, dense=True)

    def unpack_flat(self, head: Tensor, body: Tensor, fmt: BlockFormat, out_n: Tensor) -> None:
        _decode(head, body, fmt, out_n, dense=True)


def _encode(x_n: Tensor, fmt: BlockFormat, scales_B: Tensor, codes: Tensor, dense: bool) -> None:
    """dense: codes are packed."""
    n, addresses = x_n.numel(), (x_n.data_ptr(), scales_B.data_ptr(), codes.data_ptr())
    _native.encode_blocks(*addresses, dense, n, *_blocks(fmt, n))


def _decode(scales_B: Tensor, codes: Tensor, fmt: BlockFormat, out_n: Tensor, dense: bool) -> None:
    n = out_n.numel()
    _native.decode_blocks(scales_B.data_ptr(), codes.data_ptr(), dense, out_n.data_ptr(), n, *_blocks(fmt, n))


def _blocks(fmt: BlockFormat, n: int) -> tuple[int, int, int, int]:
    """The last arguments of the compiled functions for n values: blocks are no longer than that."""
    size = max(1, min(fmt.block, n))
    return size, 0 if fmt.element is None else fmt.element.spec, fmt.emax, get_num_threads()


backend = NativeMx()
