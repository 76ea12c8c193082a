"""What rounding would do to a tensor, for every scalar format and every power-of-two shift at once.

Nearest-even rounding of x with 2^k <= |x| < 2^(k+1) depends on the mantissa u = |x| / 2^k alone, and on the spacing
of the format's values there: 2^(k - m'), where m' is the format's mantissa bits m among its normal values and m -
(emin - k) among its subnormal ones. A shift moves k and nothing else. So for each binade k and each m' of -1 .. 10 a
few sums say all that any scalar format of at most 10 mantissa bits does, saturation included (`tally.py`). Below m' =
-1 everything becomes zero.

Elements are counted by these m' and by what decides them (`cells.py`), in integers: a table's sums are exact but for
float64's rounding in the last products, a relative 1e-12. Tensors of a few elements are gone through one by one.

inf and NaN are counted and take no other part; zeros likewise, of either sign (a zero stays one). Subnormal float32
values are values as all others: their k goes down to -149.

Legend: K binades, T tensors, n elements, S = len(SPACINGS), F = len(COLUMNS).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cpdrun.whatif.collect import histogram as cells
from cpdrun.whatif.collect.histogram import (
    BIAS,
    CELLS,
    DROPPED,
    FIELD_BITS,
    SPACINGS,
    lasts,
    roundings,
    split,
)

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

_LIFT = 64  # float32 subnormals times 2^64 are normal
_SMALL = 2048  # elements up to which one by one is cheaper than by cells


def tables(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Of each tensor (float32, any shape) its binades k, (K,) int64, ascending, and their rows, (K, F) float64, on
    the CPU.

    Tensors are not changed. Binades without elements have no row; a tensor of zeros has none.
    """
    found = [_none()] * len(tensors)
    small = [t for t, x in enumerate(tensors) if x.numel() <= _SMALL]
    large = [t for t, x in enumerate(tensors) if x.numel() > _SMALL]
    for those, gathered in ((small, _one_by_one), (large, _by_cells)):
        for t, pair in zip(those, gathered([tensors[t] for t in those]), strict=True):
            found[t] = pair
    return found


def add(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The table of several tensors' elements together."""
    if len(parts) == 1:
        return parts[0]
    binades_K, rows_KxF = torch.cat([k for k, _ in parts]), torch.cat([rows for _, rows in parts])
    if not len(binades_K):
        return binades_K, rows_KxF
    all_K, place_K = torch.unique(binades_K, return_inverse=True)
    return all_K, torch.zeros(len(all_K), len(COLUMNS), dtype=torch.float64).index_add_(0, place_K, rows_KxF)


def _by_cells(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    chunks = [x.detach().reshape(-1).split(cells.MOST) for x in tensors]
    counted = iter(_counted([chunk for of_tensor in chunks for chunk in of_tensor]))
    return [add(*(next(counted) for _ in of_tensor)) for of_tensor in chunks]


def _counted(chunks: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    if not chunks:
        return []
    counted, sums = cells.sums(chunks)
    binades, rows = _scaled(torch.cat([one.binades for one in counted]), _rows(sums))
    sizes = [len(one.binades) for one in counted]
    pairs = zip(counted, binades.split(sizes), rows.split(sizes), strict=True)
    return [
        (k, of_k) if one.subnormal is None else add((k, of_k), _lifted(one.subnormal))
        for one, k, of_k in pairs
    ]


def _rows(of: cells.Sums) -> Tensor:
    """(K, F) for k = 0: with x = low + d and e = r - d."""
    d, dd = of.d[:, None], of.d_d[:, None]
    up_error = 2 * of.up - of.x_up
    last_error = 2 * of.up + lasts(of.n.device) * (of.last - of.up) - of.x_last
    return torch.cat(
        [
            torch.stack([of.n, of.x, of.low_low + 2 * of.low_d + of.d_d], 1),
            of.r - d,
            of.r_r - 2 * of.d_r + dd,
            of.low_r + of.d_r - of.low_d[:, None] - dd,
            *(of.up, of.last, up_error, last_error),
        ],
        1,
    )


def _lifted(x_n: Tensor) -> tuple[Tensor, Tensor]:
    """Of subnormal float32 values alone: those of x * 2^64, exact, brought down again."""
    ((binades_K, rows),) = _counted([(x_n.double() * 2.0**_LIFT).float()])
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
    bits_n, cell_n = split(x_n)
    fields_n = bits_n >> FIELD_BITS
    here_n = (bits_n != 0) & (fields_n < 255)
    bits_n, cell_n, fields_n = bits_n[here_n], cell_n[here_n], fields_n[here_n]
    binade_n = fields_n.long() - BIAS - _LIFT * lift_n[here_n].long()
    low_n = (bits_n & (1 << DROPPED) - 1).double() * 2.0**-23
    # binades are from -149 to 127
    key_n, order_n = torch.sort(tensor_n[here_n] * 512 + binade_n + 256, stable=True)
    cell_n, low_n = (cell_n & CELLS - 1).long()[order_n], low_n[order_n]
    keys, counts = torch.unique_consecutive(key_n, return_counts=True)
    if not len(keys):
        return [_none() for _ in tensors]
    firsts = (counts.cumsum(0) - counts).cpu().numpy()
    rows_Fxn = _rows_of_one(cell_n, low_n).cpu().numpy()
    rows = torch.from_numpy(np.ascontiguousarray(np.add.reduceat(rows_Fxn, firsts, axis=1).T))
    keys = keys.cpu()
    binades, rows = _scaled(keys % 512 - 256, rows)
    of_tensor = keys // 512
    return [(binades[of_tensor == t], rows[of_tensor == t]) for t in range(len(tensors))]


def _rows_of_one(cell_n: Tensor, low_n: Tensor) -> Tensor:
    """(F, n), a column for each element: cells and d above their lower ends. In place, for memory is what it costs."""
    low_C, q_CxS = roundings(cell_n.device)
    rows_Fxn = torch.empty(len(COLUMNS), len(cell_n), dtype=torch.float64, device=cell_n.device)
    one, u_n, square = rows_Fxn[: len(OF_BINADE)]
    e, e_e, u_e, up, last, up_e, last_e = rows_Fxn[len(OF_BINADE) :].split(len(SPACINGS))
    one.fill_(1.0)
    torch.add(low_C[cell_n], low_n, out=u_n)
    torch.mul(u_n, u_n, out=square)
    q_Sxn = q_CxS.T.contiguous().index_select(1, cell_n)
    torch.ge(q_Sxn, 2.0, out=up)
    torch.ge(q_Sxn, lasts(cell_n.device)[:, None], out=last)
    torch.sub(q_Sxn, u_n, out=e)
    for product, (a, b) in ((e_e, (e, e)), (u_e, (u_n, e)), (up_e, (up, e)), (last_e, (last, e))):
        torch.mul(a, b, out=product)
    return rows_Fxn


def _scaled(binades_K: Tensor, rows_KxF: Tensor) -> tuple[Tensor, Tensor]:
    """From k = 0 to the units of x, exact: float64 holds 2^-298."""
    power_F = torch.tensor(_POWER_F, dtype=torch.float64, device=rows_KxF.device)
    rows_KxF *= torch.exp2(binades_K.double()[:, None] * power_F)
    return binades_K.cpu(), rows_KxF.cpu()


def _none() -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0, len(COLUMNS), dtype=torch.float64)
