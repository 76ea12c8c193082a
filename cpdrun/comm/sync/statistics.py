"""Statistics that describe how a format changes the gradients of a layer in one step."""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import custom_fp
import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.sums.codec import quantize_scaled
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.workers import Workers

_NO_EXPONENT = -1000  # a placeholder that is smaller than the exponent of any float32 number


def count_nonfinite(tensors: Sequence[Tensor]) -> int:
    """Return the number of elements that are inf or NaN.

    The function synchronizes a GPU only once. In the usual case without such elements, it computes only sums.
    """
    if not tensors or math.isfinite(functools.reduce(torch.add, [tensor.sum() for tensor in tensors])):
        return 0
    return sum(int(torch.count_nonzero(~torch.isfinite(tensor))) for tensor in tensors)


@lru_cache(maxsize=64)
def hides_nonfinite(how: Sum) -> tuple[bool, bool]:
    """Return two values: whether the sum turns inf into a finite number, and whether it turns NaN into one."""
    values = torch.tensor([math.inf, math.nan])
    # Round twice, as a worker's gradient and its sum are. NaN may first become inf, and then the largest value.
    for _ in ("a worker's gradient", "the sum"):
        values = custom_fp.quantize(values, how.fmt, overflow=how.overflow)
    return tuple(torch.isfinite(values).tolist())


def count_hidden(tensors: Sequence[Tensor], how: Sum) -> int:
    """Return the number of inf and NaN that the format turns into finite numbers."""
    if not any(hides_nonfinite(how)) or not count_nonfinite(tensors):
        return 0
    kinds = zip(hides_nonfinite(how), (torch.isinf, torch.isnan), strict=True)
    return sum(int(is_kind(tensor).sum()) for hidden, is_kind in kinds if hidden for tensor in tensors)


def layer_statistics(
    gradients: Tensor, total: Tensor, shifts: Sequence[int], how: Sum, workers: Workers
) -> dict[str, Any]:
    """Return statistics over all N workers. Collective.

    The result is equal on all ranks and for every assignment of workers to ranks. Its keys:

        exponent_min, exponent_max  The smallest and the largest floor(log2|g|) of the finite non-zero values. None if
                                    there are no such values.
        underflow                   The fraction of the finite non-zero values that the format rounds to zero.
        overflow                    The fraction of the finite values that the format rounds to inf or NaN.
        nonfinite                   The number of inf and NaN in the gradients, before they are rounded.
        sum_error                   ||total - S|| / ||S|| with the float64 sum S. None if S is zero or not finite.

    With error feedback, the workers send gradients plus residuals. The statistics describe the gradients only.

    Args:
        gradients: The gradients of this rank's L workers, (L, ...), float32.
        total: The result.
        shifts: The shift of each of the L workers.
        how: The sum.
        workers: The assignment of workers to ranks.
    """
    stack_Lxn = gradients.reshape(len(shifts), -1)
    if how.is_stochastic:  # Use rounding to nearest for the statistics, because it needs no random numbers.
        how = replace(how, rounding="nearest_even")
    rounded_Lxn = torch.stack([quantize_scaled(g, s, how) for g, s in zip(stack_Lxn, shifts, strict=True)])
    finite, nonzero = torch.isfinite(stack_Lxn), stack_Lxn != 0
    counted = finite & nonzero
    exponents = torch.frexp(stack_Lxn[counted]).exponent - 1
    largest = exponents.max().item() if exponents.numel() else _NO_EXPONENT
    smallest = exponents.min().item() if exponents.numel() else -_NO_EXPONENT
    underflow, overflow = counted & (rounded_Lxn == 0), finite & ~torch.isfinite(rounded_Lxn)
    counts = torch.stack([kind.sum() for kind in (underflow, counted, overflow, finite, ~finite)]).double()
    bounds = torch.tensor([largest, -smallest], dtype=torch.int32, device=gradients.device)
    exact_n = stack_Lxn.to(torch.float64).sum(0)
    if workers.ranks > 1:
        dist.all_reduce(counts, group=workers.group)
        dist.all_reduce(bounds, dist.ReduceOp.MAX, group=workers.group)
        dist.all_reduce(exact_n, group=workers.group)
    underflows, nonzeros, overflows, finites, nonfinites = counts.tolist()
    largest, smallest = bounds[0].item(), -bounds[1].item()
    return {
        "exponent_min": smallest if nonzeros else None,
        "exponent_max": largest if nonzeros else None,
        "underflow": underflows / nonzeros if nonzeros else 0.0,
        "overflow": overflows / finites if finites else 0.0,
        "nonfinite": int(nonfinites),
        "sum_error": _relative_error(total.reshape(-1), exact_n),
    }


def _relative_error(total_n: Tensor, exact_n: Tensor) -> float | None:
    norm = torch.linalg.vector_norm(exact_n).item()
    if not 0 < norm < float("inf"):
        return None
    error = torch.linalg.vector_norm(total_n.to(torch.float64) - exact_n).item() / norm
    # The order in which the ranks add the float64 sum is unknown, but it does not affect the first six digits.
    return float(f"{error:.6g}") if error < float("inf") else None
