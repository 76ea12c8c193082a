"""What rounding would do to a tensor, for every scalar format and every power-of-two shift at once.

Nearest-even rounding of x with 2^k <= |x| < 2^(k+1) depends on the mantissa u = |x| / 2^k alone, and on the spacing
of the format's values there: 2^(k - m'), where m' is the format's mantissa bits m among its normal values and m -
(emin - k) among its subnormal ones. A shift moves k and nothing else. So for each binade k and each m' of -1 .. 10 a
few sums say all that any scalar format of at most 10 mantissa bits does, saturation included (`tally.py`). Below m' =
-1 everything becomes zero.

One pass gathers them: the rounded mantissa, for every such m', is decided by the first 11 bits of u and by whether
any of the others is set. Elements are counted by these 4096 *cells* of a binade, with the sums of d and d^2, where d
is what lies above the cell's lower end: integers in units of 2^-23, exact in float64 as long as they stay below 2^53,
so that the order of addition plays no part. What each cell becomes is asked of `custom_fp.quantize` once, and a
matrix makes of cells what a table holds: its sums are exact but for float64's rounding in the last products, a
relative 1e-12.

inf and NaN are counted and take no other part; zeros likewise, of either sign (a zero stays one). Subnormal float32
values are values as all others: their k goes down to -149.

Legend: K binades, C = 4096 cells, T tensors, S = len(SPACINGS), F = len(COLUMNS).
"""

from collections.abc import Sequence
from functools import cache

import custom_fp
import numpy as np
import torch
from torch import Tensor

SPACINGS = tuple(range(-1, 11))
"""The m' of a table's columns: the spacing is 2^(k - m')."""

OF_BINADE = ("count", "magnitude", "square")
OF_SPACING = ("error", "squared_error", "product", "up", "last", "up_error", "last_error")
COLUMNS = (*OF_BINADE, *(f"{name}{m}" for name in OF_SPACING for m in SPACINGS))
"""A row's sums over the elements of its binade, in the units of x, where q is |x| rounded and e = q - |x|:

    count, magnitude, square    1, |x|, x^2
    error, squared_error        e, e^2: positive where the magnitude grows
    product                     |x| e
    up, up_error                1 and e of those with q = 2^(k+1), the next binade
    last, last_error            1 and e of those with q at the binade's last value, 2^(k+1) - 2^(k-m'), or beyond
"""
_POWERS = dict(zip(OF_BINADE, (0, 1, 2), strict=True)) | {
    name: {"error": 1, "squared_error": 2, "product": 2, "up": 0, "last": 0}.get(name, 1)
    for name in OF_SPACING
}
_POWER_F = [
    *(_POWERS[name] for name in OF_BINADE),
    *(_POWERS[name] for name in OF_SPACING for _ in SPACINGS),
]

_DROPPED = 12  # bits of a float32 mantissa below the first 11
_CELLS = 1 << 12  # 11 bits, and whether any other is set
_FIELD_BITS = 23
_BIAS = 127
_NO_FIELD = 1 << 30
_LIFT = 64  # float32 subnormals times 2^64 are normal
_SMALL = 2048  # elements up to which one by one is cheaper than by cells
_CHUNK = 1 << 22  # elements at once: bounds what a pass takes beside the tensor


@cache
def _roundings(device: torch.device) -> tuple[Tensor, Tensor]:
    """(C,) lower end u of each cell, 1 <= u < 2, and (C, S) what its elements are rounded to, float64."""
    cells = torch.arange(_CELLS, device=device)
    low_C = 1 + (cells >> 1).double() * 2.0**-11
    inside_C = (low_C + (cells & 1) * 2.0**-12).float()  # of odd cells the middle: neither end is in them
    # of the spacing 2: the smallest value of a format without subnormals, so that 1 is halfway to zero
    formats = [custom_fp.Format(2, 0, bias=0), *(custom_fp.Format(8, m) for m in SPACINGS[1:])]
    return low_C, torch.stack([custom_fp.quantize(inside_C, fmt).double() for fmt in formats], 1)


@cache
def _lasts(device: torch.device) -> Tensor:
    """(S,) the last value of a binade, for k = 0."""
    return torch.tensor([2 - 2.0**-m for m in SPACINGS], dtype=torch.float64, device=device)


@cache
def _matrices(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(C, 3 S), r, r^2 and low r of each cell, r = rounded - low; and (S,) int64, the last cells
    that do not round to the next binade, and to the last value of this one or beyond: those behind do; -1 for none."""
    low_C, q_CxS = _roundings(device)
    r = q_CxS - low_C[:, None]
    below_up, below_last = (q_CxS < 2).sum(0) - 1, (q_CxS < _lasts(device)).sum(0) - 1
    return torch.cat([r, r * r, low_C[:, None] * r], 1), below_up, below_last


def tables(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Of each tensor (float32, any shape) its binades k, (K,) int64, ascending, and their rows, (K, F) float64, on
    the CPU.

    Tensors are not changed. Binades without elements have no row; a tensor of zeros has none.
    """
    found: list[tuple[Tensor, Tensor] | None] = [None] * len(tensors)
    small = [t for t, x in enumerate(tensors) if x.numel() <= _SMALL]
    for t, pair in zip(small, _one_by_one([tensors[t] for t in small]), strict=True):
        found[t] = pair
    return [pair or _by_cells(x) for x, pair in zip(tensors, found, strict=True)]


def add(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The table of several tensors' elements together."""
    binades_K, rows_KxF = torch.cat([k for k, _ in parts]), torch.cat([rows for _, rows in parts])
    if not len(binades_K):
        return binades_K, rows_KxF
    all_K, place_K = torch.unique(binades_K, return_inverse=True)
    return all_K, torch.zeros(len(all_K), len(COLUMNS), dtype=torch.float64).index_add_(0, place_K, rows_KxF)


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) int32 of a float32 tensor: the bits of |x|, and its cell's number among those of all fields."""
    bits_n = x.detach().reshape(-1).float().contiguous().view(torch.int32) & 0x7FFFFFFF
    cell_n = (bits_n + ((1 << _DROPPED) - 1)).bitwise_right_shift_(
        _DROPPED
    )  # one more where a dropped bit is set
    return bits_n, cell_n.add_(bits_n >> _DROPPED)


def _by_cells(x: Tensor) -> tuple[Tensor, Tensor]:
    parts = [_counted(chunk) for chunk in x.detach().reshape(-1).split(_CHUNK)]
    return parts[0] if len(parts) == 1 else add(*parts)


def _counted(x_n: Tensor) -> tuple[Tensor, Tensor]:
    bits_n, cell_n = _split(x_n)
    least, most = (int(bits) >> _FIELD_BITS for bits in bits_n.aminmax())
    others = (
        least == 0 or most == 255
    )  # zeros, subnormals, inf, NaN: they fall into the places before and after
    subnormal = False
    if others:
        fields = bits_n >> _FIELD_BITS
        subnormal = bool(((fields == 0) & (bits_n != 0)).any())
        least = int(torch.where(fields == 0, _NO_FIELD, fields).amin())
        most = int(torch.where(fields == 255, 0, fields).amax())
    parts = []
    if least <= most < 255:
        first, count = least * _CELLS, (most - least + 1) * _CELLS
        place_n = cell_n.sub_(first - 1)
        place_n = (place_n.clamp_(0, count + 1) if others else place_n).long()
        low_n = (bits_n & (1 << _DROPPED) - 1).double()
        of_each = [
            torch.bincount(place_n, minlength=count + 2).double(),
            torch.bincount(place_n, low_n, minlength=count + 2),
            torch.bincount(place_n, low_n.square_(), minlength=count + 2),
        ]
        n, d, dd = (total[1:-1].view(-1, _CELLS) for total in of_each)
        binades_K = torch.arange(least - _BIAS, most - _BIAS + 1, device=x_n.device)
        rows = _rows(n, d.mul_(2.0**-23), dd.sum(1) * 2.0**-46)
        there = rows[:, 0] > 0
        parts.append(_scaled(binades_K[there], rows[there]))
    if subnormal:
        parts.append(_lifted(x_n[(fields == 0) & (bits_n != 0)]))
    return add(*parts) if parts else _none()


def _rows(n_KxC: Tensor, d_KxC: Tensor, dd_K: Tensor) -> Tensor:
    """(K, F) for k = 0, of the cells' counts and sums of d and the binades' sums of d^2: with x = low + d and
    e = r - d."""
    device, S = n_KxC.device, len(SPACINGS)
    low_C, _ = _roundings(device)
    by_count, below_up, below_last = _matrices(device)
    n_r, n_rr, n_low_r = (n_KxC @ by_count).split(S, 1)
    d_r, d_K, d_low_K, dd = d_KxC @ by_count[:, :S], d_KxC.sum(1), d_KxC @ low_C, dd_K[:, None]
    x_KxC = n_KxC * low_C + d_KxC
    n_K, x_K, n_low_low_K = n_KxC.sum(1), x_KxC.sum(1), n_KxC @ (low_C * low_C)
    # exact, for all are multiples of 2^-23
    n_below, x_below = n_KxC.cumsum(1), x_KxC.cumsum_(1)
    up, x_up = (_behind(z, total, below_up) for z, total in ((n_below, n_K), (x_below, x_K)))
    last, x_last = (_behind(z, total, below_last) for z, total in ((n_below, n_K), (x_below, x_K)))
    up_error = 2 * up - x_up
    last_error = 2 * up + _lasts(device) * (last - up) - x_last
    square_K = n_low_low_K + 2 * d_low_K + dd_K
    return torch.cat(
        [
            torch.stack([n_K, x_K, square_K], 1),
            n_r - d_K[:, None],
            n_rr - 2 * d_r + dd,
            n_low_r + d_r - d_low_K[:, None] - dd,
            *(up, last, up_error, last_error),
        ],
        1,
    )


def _behind(below_KxC: Tensor, total_K: Tensor, cell_S: Tensor) -> Tensor:
    """(K, S) of running sums and their totals: what is behind each of the cells."""
    return total_K[:, None] - below_KxC[:, cell_S.clamp_min(0)] * (cell_S >= 0)


def _lifted(x_n: Tensor) -> tuple[Tensor, Tensor]:
    """Of subnormal float32 values alone: those of x * 2^64, exact, brought down again."""
    parts = [_counted(chunk) for chunk in (x_n.double() * 2.0**_LIFT).float().split(_CHUNK)]
    binades_K, rows = add(*parts)
    power_F = torch.tensor(_POWER_F, dtype=torch.float64)
    return binades_K - _LIFT, rows * torch.exp2(-_LIFT * power_F)


def _one_by_one(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The same of small tensors, all at once: each element has a row, and rows are added by tensor and binade."""
    if not tensors:
        return []
    device = tensors[0].device
    x_n = torch.cat([x.detach().reshape(-1).float() for x in tensors])
    sizes = torch.tensor([x.numel() for x in tensors], device=device)
    tensor_n = torch.repeat_interleave(torch.arange(len(tensors), device=device), sizes)
    lift_n = (x_n.abs() < 2.0**-126) & (x_n != 0)
    if bool(lift_n.any()):
        x_n = torch.where(lift_n, (x_n.double() * 2.0**_LIFT).float(), x_n)
    bits_n, cell_n = _split(x_n)
    fields_n = bits_n >> _FIELD_BITS
    here_n = (bits_n != 0) & (fields_n < 255)
    bits_n, cell_n, fields_n = bits_n[here_n], cell_n[here_n], fields_n[here_n]
    binade_n = fields_n.long() - _BIAS - _LIFT * lift_n[here_n].long()
    low_n = (bits_n & (1 << _DROPPED) - 1).double() * 2.0**-23
    # binades are from -149 to 127
    key_n, order_n = torch.sort(tensor_n[here_n] * 512 + binade_n + 256, stable=True)
    cell_n, low_n = (cell_n & _CELLS - 1).long()[order_n], low_n[order_n]
    low_C, q_CxS = _roundings(device)
    u_nx1, q_nxS = (low_C[cell_n] + low_n)[:, None], q_CxS[cell_n]
    e_nxS = q_nxS - u_nx1
    up, last = (q_nxS >= 2).double(), (q_nxS >= _lasts(device)).double()
    of_binade = [torch.ones_like(u_nx1), u_nx1, u_nx1 * u_nx1]
    of_spacing = [e_nxS, e_nxS * e_nxS, u_nx1 * e_nxS, up, last, up * e_nxS, last * e_nxS]
    keys, counts = torch.unique_consecutive(key_n, return_counts=True)
    if not len(keys):
        return [_none() for _ in tensors]
    firsts = (counts.cumsum(0) - counts).cpu().numpy()
    rows_nxF = torch.cat([*of_binade, *of_spacing], 1).cpu().numpy()
    rows = torch.from_numpy(np.add.reduceat(rows_nxF, firsts, axis=0))
    keys = keys.cpu()
    binades, rows = _scaled(keys % 512 - 256, rows)
    of_tensor = keys // 512
    return [(binades[of_tensor == t], rows[of_tensor == t]) for t in range(len(tensors))]


def _scaled(binades_K: Tensor, rows_KxF: Tensor) -> tuple[Tensor, Tensor]:
    """From k = 0 to the units of x, exact: float64 holds 2^-298."""
    power_F = torch.tensor(_POWER_F, dtype=torch.float64, device=rows_KxF.device)
    rows_KxF *= torch.exp2(binades_K.double()[:, None] * power_F)
    return binades_K.cpu(), rows_KxF.cpu()


def _none() -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0, len(COLUMNS), dtype=torch.float64)
