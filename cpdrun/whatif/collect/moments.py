"""Compute moments of a tensor that determine its error for any format.

A shift multiplies the tensor by a power of two before rounding.

Let 2^k <= |x| < 2^(k+1), and let the format have m mantissa bits. Rounding x to nearest even depends only on the
mantissa u = |x| / 2^k and on the spacing 2^(k-m') of the format's values in this binade: m' = m for normal values, and
m' = m - (emin - k) for subnormal values. A shift changes only k. Therefore, a few sums for each binade k and each m' in
-1 .. 10 determine the error for any scalar format with at most 10 mantissa bits, including saturation
(`cpdrun.whatif.simulate.rounding_error`). If m' < -1, every value rounds to zero.

Large tensors are counted in integer histograms (`cpdrun.whatif.collect.histogram`). Their sums are exact except for the
last products in float64, which have a relative error of 1e-12. Small tensors are processed element by element.

Tables exclude zeros, which always round to zero, inf, and NaN; `TensorStatistics` counts them. Subnormal float32 values
are included, with k >= -149.

Shapes: K binades, n elements, S = len(SPACINGS), F = len(COLUMNS).
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
# The columns of a table, which has a row for each binade. Each column is a sum over the binade's elements, in the units
# of x. q is the rounded |x|, and e = q - |x| is the error.
#
#     count, magnitude, square    the number of elements, the sum of |x|, the sum of x^2
#     error, squared_error        the sums of e and e^2
#     product                     the sum of |x| e
#     up, up_error                the number of elements with q = 2^(k+1), in the next binade, and their sum of e
#     last, last_error            the number of elements with q >= 2^(k+1) - 2^(k-m'), the largest value of the binade,
#                                 and their sum of e
COLUMNS = (*OF_BINADE, *(f"{name}{m}" for name in OF_SPACING for m in SPACINGS))
# Multiplying x by s multiplies a column by this power of s.
_POWERS = dict(zip(OF_BINADE, (0, 1, 2), strict=True)) | {
    name: {"error": 1, "squared_error": 2, "product": 2, "up": 0, "last": 0}.get(name, 1)
    for name in OF_SPACING
}
_POWER_F = [
    *(_POWERS[name] for name in OF_BINADE),
    *(_POWERS[name] for name in OF_SPACING for _ in SPACINGS),
]

_LIFT = 64  # float32 subnormals times 2^64 are normal
_SMALL = 2048  # up to this many elements, processing them one by one is faster than a histogram


def tables(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the table of moments of each float32 tensor.

    A table consists of the exponents k of the nonempty binades, ascending, (K,) int64, and of their rows, (K, F)
    float64. Both are on the CPU.
    """
    found = [_none()] * len(tensors)
    small = [t for t, x in enumerate(tensors) if x.numel() <= _SMALL]
    large = [t for t, x in enumerate(tensors) if x.numel() > _SMALL]
    for those, gathered in ((small, _one_by_one), (large, _by_cells)):
        for t, pair in zip(those, gathered([tensors[t] for t in those]), strict=True):
            found[t] = pair
    return found


def add(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Add tables. The result is the table of the concatenated tensors."""
    if len(parts) == 1:
        return parts[0]
    binades_K, rows_KxF = torch.cat([k for k, _ in parts]), torch.cat([rows for _, rows in parts])
    if not len(binades_K):
        return binades_K, rows_KxF
    all_K, place_K = torch.unique(binades_K, return_inverse=True)
    return all_K, torch.zeros(len(all_K), len(COLUMNS), dtype=torch.float64).index_add_(0, place_K, rows_KxF)


def _by_cells(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    chunks = [x.detach().reshape(-1).split(cells.MAX_ELEMENTS) for x in tensors]
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
    """Return the rows of binades, (K, F), scaled to k = 0.

    An element low + d that rounds to low + r has the error e = r - d.
    """
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
    """Return the table of subnormal float32 values.

    Multiplying them by 2^64 is exact and makes them normal. The resulting table is scaled back.
    """
    ((binades_K, rows),) = _counted([(x_n.double() * 2.0**_LIFT).float()])
    power_F = torch.tensor(_POWER_F, dtype=torch.float64)
    return binades_K - _LIFT, rows * torch.exp2(-_LIFT * power_F)


def _one_by_one(tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the tables of small tensors, in one pass.

    Each element gets a row. The rows of the same tensor and binade are then added.
    """
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
    # Binades range from -149 to 127, so binade + 256 fits in 512 values.
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
    """Return the row of each element as a column, (F, n) float64, scaled to k = 0.

    cell_n is the cell of each element in its binade, and low_n the distance d from its lower end. The columns are
    computed in place, because memory accesses take most of the time.
    """
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
    """Convert rows that were computed for binade k = 0 to the units of x, in place, and move them to the CPU.

    This is exact, because each factor is a power of two that float64 can represent, even the smallest, 2^-298.
    """
    power_F = torch.tensor(_POWER_F, dtype=torch.float64, device=rows_KxF.device)
    rows_KxF *= torch.exp2(binades_K.double()[:, None] * power_F)
    return binades_K.cpu(), rows_KxF.cpu()


def _none() -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0, len(COLUMNS), dtype=torch.float64)
