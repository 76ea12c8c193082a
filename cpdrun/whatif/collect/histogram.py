"""A float32 tensor's elements, counted by binade and by *cell* of a binade, and what every cell's elements round to, as
exact sums.

The rounded mantissa, for every spacing 2^-m of m = -1 .. 10, is decided by the first 11 bits of the mantissa's fraction
and by whether any of the others is set: 4096 cells of a binade. An element is |x| = (low + d) 2^k, where low is its
cell's lower end and d what lies above it. What each cell becomes is asked of `custom_fp.quantize` once.

All sums are of integers in units of 2^-11 (low, q) and 2^-23 (d), exact in float64 for up to 2^22 elements: the order
of addition plays no part, and the two ways to have them are equal bit for bit. `by_matrices` is the definition, on any
device; `natively`, of custom_fp's CPU extension, merges cells that round alike as the spacing grows.

Legend: K binades, C = 4096 cells, S = len(SPACINGS).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple

import custom_fp
import torch
from torch import Tensor

SPACINGS = tuple(range(-1, 11))
"""The m of a spacing 2^-m, of a mantissa in 1 .. 2."""

MOST = 1 << 22
"""Elements at once: sums stay exact, and what a pass takes beside the tensor is bounded."""

DROPPED = 12  # bits of a float32 mantissa below the first 11
CELLS = 1 << 12  # 11 bits, and whether any other is set
FIELD_BITS = 23
BIAS = 127
_NO_FIELD = 1 << 30


@dataclass(frozen=True)
class Sums:
    """float64, of the elements of a binade each, for k = 0. With q what u = low + d is rounded to and r = q - low:

    n, x, low_low, d, low_d, d_d        (K,) 1, u, low^2, d, low d, d^2
    r, r_r, low_r, d_r                  (K, S)
    up, x_up, last, x_last              (K, S) 1 and u of those with q = 2, and with q at 2 - 2^-m or beyond
    """

    n: Tensor
    x: Tensor
    low_low: Tensor
    d: Tensor
    low_d: Tensor
    d_d: Tensor
    r: Tensor
    r_r: Tensor
    low_r: Tensor
    d_r: Tensor
    up: Tensor
    x_up: Tensor
    last: Tensor
    x_last: Tensor


class Counted(NamedTuple):
    """Of one tensor: the binades k that have normal float32 values, (K,) int64, ascending; and its subnormal values, in
    no binade; None without any."""

    binades: Tensor
    subnormal: Tensor | None


def sums(chunks: Sequence[Tensor]) -> tuple[list[Counted], Sums]:
    """Of tensors of any float dtype, of at most MOST values each: what each of them has, and the sums of all their
    binades, tensor by tensor."""
    flat = [x.detach().reshape(-1).float().contiguous() for x in chunks]
    fast = custom_fp.backend("cpu") == "native" and all(x_n.device.type == "cpu" for x_n in flat)
    return natively(flat) if fast else by_matrices(flat)


def natively(flat: Sequence[Tensor]) -> tuple[list[Counted], Sums]:
    """`sums` of contiguous float32 tensors on the CPU, by custom_fp's extension."""
    from custom_fp.native import count_binades

    counted, rows = [], []
    for x_n in flat:
        counts, rows_Kx102 = count_binades(x_n, _rounded())
        subnormal = x_n[(x_n.abs() < 2.0**-126) & (x_n != 0)] if int(counts[0]) else None
        counted.append(Counted(counts[1:255].nonzero()[:, 0] + (1 - BIAS), subnormal))
        rows.append(rows_Kx102)
    rows = torch.cat(rows)
    n, low, low_low, d, low_d, d_d = rows[:, :6].unbind(1)
    of_binade = (n, 0), ((low << DROPPED) + d, 23), (low_low, 22), (d, 23), (low_d, 34), (d_d, 46)
    low, low_low, low_d = low[:, None], low_low[:, None], low_d[:, None]
    by_spacing_KxSx8 = rows[:, 6:].view(len(rows), len(SPACINGS), 8).flip(1)
    q, q_q, low_q, d_q, up, x_up, last, x_last = by_spacing_KxSx8.unbind(2)
    of_spacing = (
        (q - low, 11),
        (q_q - 2 * low_q + low_low, 22),
        (low_q - low_low, 22),
        (d_q - low_d, 34),
        *((up, 0), (x_up, 23), (last, 0), (x_last, 23)),
    )
    return counted, Sums(*(total.double() * 2.0**-unit for total, unit in (*of_binade, *of_spacing)))


def by_matrices(flat: Sequence[Tensor]) -> tuple[list[Counted], Sums]:
    """`sums` of contiguous float32 tensors: of the counts of cells, by matrices of what each of them becomes."""
    pairs = [_by_matrices(x_n) for x_n in flat]
    of_each = [[getattr(of, f.name) for f in fields(Sums)] for _, of in pairs]
    return [one for one, _ in pairs], Sums(*map(torch.cat, zip(*of_each, strict=True)))


def _by_matrices(x_n: Tensor) -> tuple[Counted, Sums]:
    bits_n, cell_n = split(x_n)
    least, most = (int(bits) >> FIELD_BITS for bits in bits_n.aminmax())
    # zeros, subnormals, inf, NaN: they fall into the places before and after
    has_others = least == 0 or most == 255
    subnormal = None
    if has_others:
        field_n = bits_n >> FIELD_BITS
        is_subnormal = (field_n == 0) & (bits_n != 0)
        subnormal = x_n[is_subnormal] if bool(is_subnormal.any()) else None
        least = int(torch.where(field_n == 0, _NO_FIELD, field_n).amin())
        most = int(torch.where(field_n == 255, 0, field_n).amax())
    if not least <= most < 255:
        least, most = 1, 0  # none
    first, count = least * CELLS, (most - least + 1) * CELLS
    place_n = cell_n.sub_(first - 1)
    place_n = (place_n.clamp_(0, count + 1) if has_others else place_n).long()
    low_n = (bits_n & (1 << DROPPED) - 1).double()
    of_each = [
        torch.bincount(place_n, minlength=count + 2).double(),
        torch.bincount(place_n, low_n, minlength=count + 2),
        torch.bincount(place_n, low_n.square_(), minlength=count + 2),
    ]
    n, d, dd = (total[1:-1].view(-1, CELLS) for total in of_each)
    there = n.sum(1) > 0
    binades_K = torch.arange(least - BIAS, most - BIAS + 1, device=x_n.device)[there]
    of_cells = _of_cells(n[there], d[there] * 2.0**-23, dd[there].sum(1) * 2.0**-46)
    return Counted(binades_K, subnormal), of_cells


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) int32 of a float32 tensor: the bits of |x|, and its cell's number among those of all fields."""
    bits_n = x.detach().reshape(-1).float().contiguous().view(torch.int32) & 0x7FFFFFFF
    # one more where a dropped bit is set
    cell_n = (bits_n + ((1 << DROPPED) - 1)).bitwise_right_shift_(DROPPED)
    return bits_n, cell_n.add_(bits_n >> DROPPED)


@cache
def roundings(device: torch.device) -> tuple[Tensor, Tensor]:
    """(C,) lower end u of each cell, 1 <= u < 2, and (C, S) what its elements are rounded to, float64."""
    cells = torch.arange(CELLS, device=device)
    low_C = 1 + (cells >> 1).double() * 2.0**-11
    inside_C = (low_C + (cells & 1) * 2.0**-12).float()  # of odd cells the middle: neither end is in them
    # of the spacing 2: the smallest value of a format without subnormals, so that 1 is halfway to zero
    formats = [custom_fp.Format(2, 0, bias=0), *(custom_fp.Format(8, m) for m in SPACINGS[1:])]
    return low_C, torch.stack([custom_fp.quantize(inside_C, fmt).double() for fmt in formats], 1)


@cache
def lasts(device: torch.device) -> Tensor:
    """(S,) the last value of a binade, for k = 0."""
    return torch.tensor([2 - 2.0**-m for m in SPACINGS], dtype=torch.float64, device=device)


@cache
def _rounded() -> Tensor:
    """For the extension: of m = 10 all cells, of m = 9 every other one's bits ..., int32, in units of 2^-11."""
    _, q_CxS = roundings(torch.device("cpu"))
    found = []
    for m in reversed(SPACINGS):
        merged = torch.arange(1 << (m + 2))
        found.append(q_CxS[(merged >> 1 << (11 - m)) + (merged & 1), m - SPACINGS[0]])
    return (torch.cat(found) * 2.0**11).int()


@cache
def _matrices(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(C, 3 S), r, r^2 and low r of each cell, r = rounded - low; and (S,) int64, the last cells
    that do not round to the next binade, and to the last value of this one or beyond: those behind do; -1 for none."""
    low_C, q_CxS = roundings(device)
    r = q_CxS - low_C[:, None]
    below_up, below_last = (q_CxS < 2).sum(0) - 1, (q_CxS < lasts(device)).sum(0) - 1
    return torch.cat([r, r * r, low_C[:, None] * r], 1), below_up, below_last


def _of_cells(n_KxC: Tensor, d_KxC: Tensor, d_d_K: Tensor) -> Sums:
    """Of the cells' counts and sums of d and the binades' sums of d^2."""
    device, S = n_KxC.device, len(SPACINGS)
    low_C, _ = roundings(device)
    by_count, below_up, below_last = _matrices(device)
    r, r_r, low_r = (n_KxC @ by_count).split(S, 1)
    x_KxC = n_KxC * low_C + d_KxC
    n_K, x_K, low_low_K = n_KxC.sum(1), x_KxC.sum(1), n_KxC @ (low_C * low_C)
    n_below, x_below = n_KxC.cumsum(1), x_KxC.cumsum_(1)
    up, x_up = (_behind(z, total, below_up) for z, total in ((n_below, n_K), (x_below, x_K)))
    last, x_last = (_behind(z, total, below_last) for z, total in ((n_below, n_K), (x_below, x_K)))
    of_binade = n_K, x_K, low_low_K, d_KxC.sum(1), d_KxC @ low_C, d_d_K
    return Sums(*of_binade, r, r_r, low_r, d_KxC @ by_count[:, :S], up, x_up, last, x_last)


def _behind(below_KxC: Tensor, total_K: Tensor, cell_S: Tensor) -> Tensor:
    """(K, S) of running sums and their totals: what is behind each of the cells."""
    return total_K[:, None] - below_KxC[:, cell_S.clamp_min(0)] * (cell_S >= 0)
