"""Sum the rounding errors of float32 tensors exactly, with histograms.

The values with 2^k <= |x| < 2^(k+1) form a binade, which is divided into 4096 cells. A cell is identified by the first
11 fraction bits of the mantissa and one sticky bit, which tells whether any lower bit is set. For every spacing 2^-m
with m = -1 .. 10, all elements of a cell round to the same mantissa, so `custom_fp.quantize` rounds each cell only
once.

Let |x| = (low + d) 2^k, where low is the lower end of the cell. All sums add integers: low and the rounded mantissa q
in units of 2^-11, and d in units of 2^-23. With up to 2^22 elements, they are exact in float64, so the order of
addition does not matter, and both implementations agree bit for bit. `sums_reference` is the definition, and runs on
any device. `sums_native` uses custom_fp's CPU extension, which merges cells where wider spacings allow it.

Shapes: n elements, K binades, C = 4096 cells, S = len(SPACINGS).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple

import custom_fp
import torch
from torch import Tensor

# The exponents m of the spacings. Mantissas in [1, 2) are rounded to multiples of 2^-m.
SPACINGS = tuple(range(-1, 11))

# The largest number of elements in one pass, which keeps the sums exact and limits memory.
MAX_ELEMENTS = 1 << 22

DROPPED = 12  # the number of float32 fraction bits below the first 11
CELLS = 1 << 12  # 11 fraction bits and the sticky bit
FIELD_BITS = 23
BIAS = 127
_NO_FIELD = 1 << 30


@dataclass(frozen=True)
class Sums:
    """Sums over the elements of each binade, as float64 tensors.

    An element's mantissa u = low + d in [1, 2) is rounded to q, and r = q - low. Mantissas do not depend on the
    exponent k.

    Attributes:
        n: (K,) The number of elements.
        x: (K,) The sum of u.
        low_low: (K,) The sum of low^2.
        d: (K,) The sum of d.
        low_d: (K,) The sum of low d.
        d_d: (K,) The sum of d^2.
        r: (K, S) The sum of r.
        r_r: (K, S) The sum of r^2.
        low_r: (K, S) The sum of low r.
        d_r: (K, S) The sum of d r.
        up: (K, S) The number of elements with q = 2, which is in the next binade.
        x_up: (K, S) The sum of u over the elements with q = 2.
        last: (K, S) The number of elements with q >= 2 - 2^-m, the last value of the binade.
        x_last: (K, S) The sum of u over the elements with q >= 2 - 2^-m.
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


class BinadeCount(NamedTuple):
    """The nonempty binades and the subnormal values of one tensor.

    Attributes:
        binades: (K,) int64, ascending. The exponents k of the binades that contain normal float32 values.
        subnormal: The subnormal float32 values, which belong to no binade. None if there are none.
    """

    binades: Tensor
    subnormal: Tensor | None


def sums(chunks: Sequence[Tensor]) -> tuple[list[BinadeCount], Sums]:
    """Return the binades of each tensor, and the sums over each binade, concatenated.

    The tensors have at most MAX_ELEMENTS elements each. Zeros, inf, and NaN are ignored.
    """
    flat = [x.detach().reshape(-1).float().contiguous() for x in chunks]
    fast = custom_fp.backend("cpu") == "native" and all(x_n.device.type == "cpu" for x_n in flat)
    return sums_native(flat) if fast else sums_reference(flat)


def sums_native(flat: Sequence[Tensor]) -> tuple[list[BinadeCount], Sums]:
    """Compute `sums` with custom_fp's extension, for flat, contiguous float32 tensors on the CPU."""
    from custom_fp.native import count_binades

    counted, rows = [], []
    for x_n in flat:
        counts, rows_Kx102 = count_binades(x_n, _rounded())
        subnormal = x_n[(x_n.abs() < 2.0**-126) & (x_n != 0)] if int(counts[0]) else None
        counted.append(BinadeCount(counts[1:255].nonzero()[:, 0] + (1 - BIAS), subnormal))
        rows.append(rows_Kx102)
    all_rows = torch.cat(rows)
    n, low, low_low, d, low_d, d_d = all_rows[:, :6].unbind(1)
    of_binade = (n, 0), ((low << DROPPED) + d, 23), (low_low, 22), (d, 23), (low_d, 34), (d_d, 46)
    low, low_low, low_d = low[:, None], low_low[:, None], low_d[:, None]
    by_spacing_KxSx8 = all_rows[:, 6:].view(len(all_rows), len(SPACINGS), 8).flip(1)
    q, q_q, low_q, d_q, up, x_up, last, x_last = by_spacing_KxSx8.unbind(2)
    of_spacing = (
        (q - low, 11),
        (q_q - 2 * low_q + low_low, 22),
        (low_q - low_low, 22),
        (d_q - low_d, 34),
        *((up, 0), (x_up, 23), (last, 0), (x_last, 23)),
    )
    return counted, Sums(*(total.double() * 2.0**-unit for total, unit in (*of_binade, *of_spacing)))


def sums_reference(flat: Sequence[Tensor]) -> tuple[list[BinadeCount], Sums]:
    """Compute `sums` with torch, for flat, contiguous float32 tensors on any device.

    The elements of each cell are counted, and the counts are multiplied by matrices that describe the cells' rounding.
    """
    pairs = [_sums_reference(x_n) for x_n in flat]
    of_each = [[getattr(of, f.name) for f in fields(Sums)] for _, of in pairs]
    return [one for one, _ in pairs], Sums(*map(torch.cat, zip(*of_each, strict=True)))


def _sums_reference(x_n: Tensor) -> tuple[BinadeCount, Sums]:
    bits_n, cell_n = split(x_n)
    least, most = (int(bits) >> FIELD_BITS for bits in bits_n.aminmax())
    # Zeros, subnormals, inf, and NaN are clamped to the first or the last place, and both places are dropped.
    has_others = least == 0 or most == 255
    subnormal = None
    if has_others:
        field_n = bits_n >> FIELD_BITS
        is_subnormal = (field_n == 0) & (bits_n != 0)
        subnormal = x_n[is_subnormal] if bool(is_subnormal.any()) else None
        least = int(torch.where(field_n == 0, _NO_FIELD, field_n).amin())
        most = int(torch.where(field_n == 255, 0, field_n).amax())
    if not least <= most < 255:
        least, most = 1, 0  # there are no normal values
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
    return BinadeCount(binades_K, subnormal), of_cells


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bits of |x| and the cell of each element, as (n,) int32.

    The cell is exponent field * CELLS + the index in its binade.
    """
    bits_n = x.detach().reshape(-1).float().contiguous().view(torch.int32) & 0x7FFFFFFF
    # The addition carries into the kept bits if any dropped bit is set.
    cell_n = (bits_n + ((1 << DROPPED) - 1)).bitwise_right_shift_(DROPPED)
    return bits_n, cell_n.add_(bits_n >> DROPPED)


@cache
def roundings(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the lower end of each cell, (C,) float64, and its rounded mantissas, (C, S) float64."""
    cells = torch.arange(CELLS, device=device)
    low_C = 1 + (cells >> 1).double() * 2.0**-11
    # An even cell contains only its lower end. An odd cell excludes both ends, so its middle represents it.
    inside_C = (low_C + (cells & 1) * 2.0**-12).float()
    # The first format stands for a spacing of 2. Its smallest value is 2 and it has no subnormals, so 1 is halfway
    # between zero and this value.
    formats = [custom_fp.Format(2, 0, bias=0), *(custom_fp.Format(8, m) for m in SPACINGS[1:])]
    return low_C, torch.stack([custom_fp.quantize(inside_C, fmt).double() for fmt in formats], 1)


@cache
def lasts(device: torch.device) -> Tensor:
    """Return the largest mantissa below 2 for each spacing, (S,) float64."""
    return torch.tensor([2 - 2.0**-m for m in SPACINGS], dtype=torch.float64, device=device)


@cache
def _rounded() -> Tensor:
    """Return the cells' rounded mantissas in the layout of the extension.

    Returns:
        int32, in units of 2^-11: 4096 cells for m = 10, then 2048 merged cells for m = 9, down to 2 for m = -1.
    """
    _, q_CxS = roundings(torch.device("cpu"))
    found = []
    for m in reversed(SPACINGS):
        merged = torch.arange(1 << (m + 2))
        found.append(q_CxS[(merged >> 1 << (11 - m)) + (merged & 1), m - SPACINGS[0]])
    return (torch.cat(found) * 2.0**11).int()


@cache
def _matrices(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the matrix and the cell indices that convert cell counts into sums.

    Returns:
        A (C, 3 S) float64 matrix with r, r^2, and low r of each cell. Then two (S,) int64 vectors: the last cell that
        rounds below 2, and the last cell that rounds below the binade's largest value. -1 means that there is none.
    """
    low_C, q_CxS = roundings(device)
    r = q_CxS - low_C[:, None]
    below_up, below_last = (q_CxS < 2).sum(0) - 1, (q_CxS < lasts(device)).sum(0) - 1
    return torch.cat([r, r * r, low_C[:, None] * r], 1), below_up, below_last


def _of_cells(n_KxC: Tensor, d_KxC: Tensor, d_d_K: Tensor) -> Sums:
    """Combine the statistics of the cells into sums over each binade.

    Args:
        n_KxC: The number of elements in each of the C cells of each of the K binades.
        d_KxC: The sum of d, which the module's docstring defines, over the elements of each cell.
        d_d_K: The sum of d^2 over the elements of each binade.
    """
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
    """Return the sums over the cells after `cell_S`, (K, S), from cumulative sums. -1 excludes no cell."""
    return total_K[:, None] - below_KxC[:, cell_S.clamp_min(0)] * (cell_S >= 0)
