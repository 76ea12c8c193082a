"""Scaled rounding, packing and adding: the steps of a sum that touch every element, in terms of `custom_fp`.

The exchange between processes and the emulation share what is said here about numbers; only the exchange
packs.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import custom_fp
import torch
from torch import Tensor

from cpdrun.comm.recipe import Recipe


@dataclass(frozen=True)
class Draw:
    """The random numbers of one stochastic rounding: a key, and where in its layer the tensor begins.

    An element's number depends on the key and on its place in the layer, not on the process that rounds it
    or on the pieces the layer is cut into. `custom_fp` counts elements from a tensor's first, so a layer is
    rounded in chunks of CHUNK elements with a seed for each, and a tensor that begins inside a chunk is
    filled up in front.
    """

    CHUNK = 1 << 16

    key: tuple
    start: int = 0

    def seed(self, *more: object) -> int:
        """63 bits, unrelated for unequal keys."""
        digest = hashlib.blake2b(repr((*self.key, *more)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def in_chunks(self, round_: Callable[[list[Tensor], int], Tensor], tensors: Sequence[Tensor]) -> Tensor:
        """round_(tensors, seed), chunk by chunk."""
        parts, stop = [], self.start + tensors[0].numel()
        for begin in range(self.start - self.start % self.CHUNK, stop, self.CHUNK):
            first, end = max(begin, self.start), min(begin + self.CHUNK, stop)
            filled = [
                torch.nn.functional.pad(x[first - self.start : end - self.start], (first - begin, 0))
                for x in tensors
            ]
            parts.append(round_(filled, self.seed(begin))[first - begin :])
        return torch.cat(parts) if parts else tensors[0].to(torch.float32)


def scale(x: Tensor, shift: int) -> Tensor:
    """x * 2^shift in float32, rounded once, for any shift."""
    return x if shift == 0 else custom_fp.scale_pow2(x, shift)


def quantize_scaled(x: Tensor, shift: int, recipe: Recipe, draw: Draw | None = None) -> Tensor:
    """Q(x * 2^shift), one rounding of the exact product.

    x: float32 of any shape; one-dimensional where the rounding is stochastic, which takes a draw.
    """
    if shift:
        x = x * 2.0**shift if _float32_will_do(shift, recipe) else x.to(torch.float64) * 2.0**shift

    def quantize(tensors: list[Tensor], seed: int | None) -> Tensor:
        (values,) = tensors
        return custom_fp.quantize(
            values, recipe.fmt, rounding=recipe.rounding, overflow=recipe.overflow, seed=seed
        )

    return quantize([x], None) if draw is None else draw.in_chunks(quantize, [x])


def _float32_will_do(shift: int, recipe: Recipe) -> bool:
    """Whether rounding to nearest cannot tell x * 2^shift in float32 from the exact product.

    2^shift must be a normal number. Upwards, only what overflows any format is inexact. Downwards, bits are lost
    below 2^-149 of products under 2^-126, which round to zero in a format whose smallest value is above 2^-120.
    A double holds the product of any float32 and any shift.
    """
    smallest = recipe.fmt.emin - recipe.fmt.mantissa_bits
    return recipe.rounding == "nearest_even" and -126 <= shift <= 127 and (shift > 0 or smallest > -120)


def accumulate(values: Sequence[Tensor], recipe: Recipe, draw: Draw | None = None) -> Tensor:
    """The sum of values of the format, in the order given, every partial sum rounded to the format."""

    def add(tensors: Sequence[Tensor], seed: int | None) -> Tensor:
        if recipe.overflow == "saturate":
            return _accumulate_saturating(tensors, recipe, seed)
        return custom_fp.accumulate(
            tensors, recipe.fmt, kahan=recipe.kahan, rounding=recipe.rounding, seed=seed
        )

    return add(values, None) if draw is None else draw.in_chunks(add, values)


def _accumulate_saturating(values: Sequence[Tensor], recipe: Recipe, seed: int | None) -> Tensor:
    """`custom_fp.accumulate`, with partial sums that stop at the largest value.

    A sum is formed in double and rounded once more: 53 >= 2 p + 2 digits, so it is as if rounded once.
    """
    additions = 0

    def rounded_sum(a: Tensor, b: Tensor) -> Tensor:
        nonlocal additions
        additions += 1
        own_seed = None if seed is None else Draw((seed, additions)).seed()
        exact = a.to(torch.float64) + b.to(torch.float64)
        return custom_fp.quantize(
            exact, recipe.fmt, rounding=recipe.rounding, overflow="saturate", seed=own_seed
        )

    total = torch.zeros_like(values[0])
    lost = torch.zeros_like(values[0])
    for value in values:
        if not recipe.kahan:
            total = rounded_sum(total, value)
            continue
        corrected = rounded_sum(value, -lost)
        new_total = rounded_sum(total, corrected)
        lost = rounded_sum(rounded_sum(new_total, -total), -corrected)
        lost = torch.where(torch.isfinite(new_total), lost, 0.0)
        total = new_total
    return total


# ---- packed bytes, one-dimensional tensors


def pack(q: Tensor, recipe: Recipe, *, out: Tensor) -> None:
    """Values of the format to ceil(n/8) * k bytes."""
    custom_fp.pack(q, recipe.fmt, out=out)


def round_and_pack(x: Tensor, shift: int, recipe: Recipe, draw: Draw | None, *, out: Tensor) -> None:
    """pack(Q(x * 2^shift))."""
    if recipe.rounding == "nearest_even" and recipe.overflow == "infinity":
        custom_fp.pack(x, recipe.fmt, shift=shift, out=out)
    else:
        pack(quantize_scaled(x, shift, recipe, draw), recipe, out=out)


def unpack(data: Tensor, numel: int, recipe: Recipe, shift: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Bytes to (numel,) values of the format, times 2^shift."""
    return custom_fp.unpack(data, recipe.fmt, (numel,), shift=shift, out=out)


def add_packed(
    payloads: Sequence[Tensor], numel: int, recipe: Recipe, draw: Draw | None, *, out: Tensor
) -> None:
    """pack(accumulate(unpacked payloads)), in the order given."""
    if draw is None and recipe.overflow == "infinity":
        custom_fp.accumulate_packed(
            payloads, recipe.fmt, numel, kahan=recipe.kahan, rounding=recipe.rounding, out=out
        )
    else:
        pack(accumulate([unpack(p, numel, recipe) for p in payloads], recipe, draw), recipe, out=out)
