"""Compiled packing of codes of 4 bits (csrc/scaled/), for formats whose other code widths are packed in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, get_num_threads

from custom_fp import _native
from custom_fp.formats.scaled import ScaledFormat
from custom_fp.scaled.arithmetic import ScaledReference


class NativeHalves(ScaledReference):
    """The reference, with a fast path for bytes that hold two codes."""

    def join(self, codes_n: Tensor, fmt: ScaledFormat, out: Tensor) -> None:
        if fmt.code_bits != 4:
            super().join(codes_n, fmt, out)
            return
        n = codes_n.numel()
        _native.join_halves(codes_n.data_ptr(), out.data_ptr(), n, get_num_threads())
        out[(n + 1) // 2 :].zero_()

    def split(self, data: Tensor, n: int, fmt: ScaledFormat) -> Tensor:
        if fmt.code_bits != 4:
            return super().split(data, n, fmt)
        codes_n = torch.empty(n, dtype=torch.uint8)
        _native.split_halves(data.data_ptr(), codes_n.data_ptr(), n, get_num_threads())
        return codes_n
