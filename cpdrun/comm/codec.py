"""Scaled rounding and packing: the steps of a sum that touch every element, in terms of `custom_fp`."""

import torch
from torch import Tensor

import custom_fp
from cpdrun.comm.recipe import Recipe


def scale(x: Tensor, shift: int) -> Tensor:
    """x * 2^shift in float32, rounded once, for any shift."""
    return x if shift == 0 else custom_fp.scale_pow2(x, shift)


def quantize_scaled(x: Tensor, shift: int, recipe: Recipe) -> Tensor:
    """Q(x * 2^shift), one rounding of the exact product (a double holds it for every float32 and every shift)."""
    if shift:
        x = torch.ldexp(x.to(torch.float64), torch.tensor(shift, device=x.device))
    return custom_fp.quantize(x, recipe.fmt, rounding=recipe.rounding, overflow=recipe.overflow)


def accumulate(values: list[Tensor], recipe: Recipe) -> Tensor:
    """The sum of tensors in the order given, every partial sum rounded to the format."""
    return custom_fp.accumulate(values, recipe.fmt, kahan=recipe.kahan, rounding=recipe.rounding)


def packed_bytes(numel: int, bits: int) -> int:
    """8 codes take `bits` bytes; the last 8 are filled up."""
    return -(-numel // 8) * bits


def pack(q: Tensor, recipe: Recipe) -> Tensor:
    """Values of the format to ceil(n/8) * k bytes."""
    return custom_fp.pack(q, recipe.fmt)


def unpack(data: Tensor, numel: int, recipe: Recipe) -> Tensor:
    """Bytes to (numel,) float32 values of the format."""
    return custom_fp.unpack(data, recipe.fmt, (numel,))
