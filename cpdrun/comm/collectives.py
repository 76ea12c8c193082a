"""all_reduce in a number format for any script: each rank of a process group is one worker.

`fmt` is a format, its name, or a `Sum` with knobs of its own; further keywords are knobs of the sum (see `Sum`).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.checks import check_float, check_terms
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.sums.forming import summation_of
from cpdrun.comm.sums.scaling import APS, Shifts
from cpdrun.comm.sums.sum import Sum, takes_knobs
from cpdrun.comm.sums.summation import Layers
from cpdrun.comm.workers import Workers


@takes_knobs
def all_reduce(
    tensor: Tensor,
    fmt: Sum | NumberFormat | str,
    *,
    aps: bool = False,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    **knobs: Any,
) -> Tensor:
    """The sum of the ranks' tensors, formed in `fmt`, sent in its bits a value; a new float32 tensor.

    The same bits on every rank, and those of `emulate_all_reduce([of rank 0, of rank 1, ...])` with the same options:
    `Sum` says what the knobs are, `scaling.py` APS. A mean needs tensors divided by the number of ranks beforehand.
    Collective: same shape and options on every rank; with a seed of its own for each call where the rounding is
    stochastic. Raises ValueError for options that do not fit together, RankLost where another rank is gone.
    """
    total = _new(tensor)
    _sum([tensor], [total], fmt, knobs, aps, seed, group)
    return total


@takes_knobs
def all_reduce_(
    tensor: Tensor,
    fmt: Sum | NumberFormat | str,
    *,
    aps: bool = False,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    **knobs: Any,
) -> Tensor:
    """`all_reduce` in place; returns the tensor."""
    in_place = tensor.dtype == torch.float32 and tensor.is_contiguous()
    total = tensor if in_place else _new(tensor)
    _sum([tensor], [total], fmt, knobs, aps, seed, group)
    return tensor if in_place else tensor.copy_(total)


@takes_knobs
def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    fmt: Sum | NumberFormat | str,
    *,
    aps: bool = False,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    **knobs: Any,
) -> list[Tensor]:
    """`all_reduce` of several tensors in one exchange; with APS each has a shift of its own."""
    sums = [_new(tensor) for tensor in tensors]
    _sum(tensors, sums, fmt, knobs, aps, seed, group)
    return sums


@takes_knobs
def emulate_all_reduce(
    tensors: Sequence[Tensor],
    fmt: Sum | NumberFormat | str,
    *,
    aps: bool = False,
    seed: int = 0,
    **knobs: Any,
) -> Tensor:
    """The sum of N equally shaped tensors as N machines form it: float32, of their shape.

    Bit for bit what `all_reduce` gives on each of N ranks that pass one of the tensors each. Raises TypeError where one
    is not floating point, ValueError for none, for unequal shapes, and as `all_reduce` does.
    """
    check_terms("emulate_all_reduce", tensors)
    for tensor in tensors:
        check_float(tensor)
    summation = summation_of(_once(fmt, knobs), Workers(len(tensors)), _shifts(aps))
    stack_Nxn = torch.stack([tensor.detach().to(torch.float32).reshape(-1) for tensor in tensors])
    total_n = torch.empty_like(stack_Nxn[0])
    summation.run(Layers(["0"], [stack_Nxn], [total_n], (seed,)))
    return total_n.view(tensors[0].shape)


def _sum(
    tensors: Sequence[Tensor],
    out: Sequence[Tensor],
    fmt: Sum | NumberFormat | str,
    knobs: dict[str, Any],
    aps: bool,
    seed: int,
    group: dist.ProcessGroup | None,
) -> None:
    """Writes the sums to `out`: contiguous float32 tensors, which may be `tensors` themselves."""
    workers = Workers.of_group(dist.get_world_size(group), group)
    summation = summation_of(_once(fmt, knobs), workers, _shifts(aps))
    for tensor in tensors:
        check_float(tensor)
    if not any(tensor.numel() for tensor in tensors):
        return
    names = [str(p) for p in range(len(tensors))]
    stacks = [tensor.detach().to(torch.float32).reshape(1, -1) for tensor in tensors]
    summation.run(Layers(names, stacks, [target.detach().view(-1) for target in out], (seed,)))


def _once(fmt: Sum | NumberFormat | str, knobs: dict[str, Any]) -> Sum:
    """A sum that is formed once, and remembers nothing."""
    found = Sum.of(fmt, **knobs)
    if found.error_feedback:
        raise ValueError(
            "error_feedback=true adds up over steps: take ddp_hook or AllReduceSync, which remember"
        )
    return found


def _shifts(aps: bool) -> Shifts:
    return Shifts(APS() if aps else None)


def _new(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, dtype=torch.float32, memory_format=torch.contiguous_format)
