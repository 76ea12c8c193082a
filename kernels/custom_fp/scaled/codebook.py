"""Codebooks in torch: the reference that codebook_native.py is held to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from custom_fp.formats.codebook import Codebook
from custom_fp.scaled.blocks import Blocks, Encoded


class CodebookBlocks(Blocks):
    """A block divided by its largest magnitude; of each quotient the code of the nearest entry."""

    def encode_blocks(self, fmt: Codebook, x_BxK: Tensor, largest_B: Tensor) -> Encoded:
        finite_B = torch.isfinite(largest_B)
        scales_B = torch.where(finite_B, largest_B, math.nan)
        divisors_B = torch.where(scales_B > 0, scales_B, 1.0)
        y_BxK = torch.where(finite_B[:, None], x_BxK / divisors_B[:, None], -1.0)
        tables = tables_of(fmt, str(x_BxK.device))
        index_BxK = torch.bucketize(y_BxK, tables.thresholds, out_int32=True)
        return tables.codes[index_BxK], scales_B

    def decode_blocks(self, fmt: Codebook, codes_BxK: Tensor, scales_B: Tensor) -> Tensor:
        values = tables_of(fmt, str(codes_BxK.device)).values
        return values[codes_BxK.to(torch.int32)] * scales_B[:, None]


@dataclass(frozen=True)
class Tables:
    thresholds: Tensor  # float32, ascending
    codes: Tensor  # uint8 (256,) in ascending order of value
    ascending: Tensor  # float32 (256,)
    values: Tensor  # float32 (256,) by code, NaN where there is none


@cache
def tables_of(fmt: Codebook, device: str) -> Tables:
    def filled(values: Sequence[float], dtype: torch.dtype, rest: float) -> Tensor:
        return torch.tensor([*values, *[rest] * (256 - len(values))], dtype=dtype, device=device)

    return Tables(
        torch.tensor(fmt.thresholds, dtype=torch.float32, device=device),
        filled(fmt.sorted_codes, torch.uint8, 0),
        filled([fmt.values[code] for code in fmt.sorted_codes], torch.float32, math.nan),
        filled(fmt.values, torch.float32, math.nan),
    )


backend = CodebookBlocks()
