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

from cpdrun.comm.sums.scaling import APS, Shifts
from cpdrun.comm.sums.sum import Sum, takes_knobs
from cpdrun.comm.sums.summations import summation_of
from cpdrun.comm.sums.summations.base import Layers, Summation
from cpdrun.comm.workers import Workers

How = Sum | NumberFormat | str
Group = dist.ProcessGroup | None


@takes_knobs
def all_reduce(
    tensor: Tensor, fmt: How, *, aps: bool = False, seed: int = 0, group: Group = None, **knobs: Any
) -> Tensor:
    """The sum of the ranks' tensors, formed in `fmt`, sent in its bits a value; a new float32 tensor.

    The same bits on every rank, and those of `emulate_all_reduce([of rank 0, of rank 1, ...])` with the same options:
    `Sum` says what the knobs are, `scaling.py` APS. A mean needs tensors divided by the number of ranks beforehand.
    Collective: same shape and options on every rank; with a seed of its own for each call where the rounding is
    stochastic. Raises ValueError for options that do not fit together, RankLost where another rank is gone.
    """
    return all_reduce_coalesced([tensor], fmt, aps=aps, seed=seed, group=group, **knobs)[0]


@takes_knobs
def all_reduce_(
    tensor: Tensor, fmt: How, *, aps: bool = False, seed: int = 0, group: Group = None, **knobs: Any
) -> Tensor:
    """`all_reduce` in place; returns the tensor."""
    if tensor.dtype == torch.float32 and tensor.is_contiguous():
        _sum([tensor], [tensor], fmt, aps, seed, group, knobs)
    else:
        tensor.detach().copy_(all_reduce(tensor, fmt, aps=aps, seed=seed, group=group, **knobs))
    return tensor


@takes_knobs
def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    fmt: How,
    *,
    aps: bool = False,
    seed: int = 0,
    group: Group = None,
    **knobs: Any,
) -> list[Tensor]:
    """`all_reduce` of several tensors in one exchange; with APS each has a shift of its own."""
    new = {"dtype": torch.float32, "memory_format": torch.contiguous_format}
    sums = [torch.empty_like(tensor, **new) for tensor in tensors]
    _sum(tensors, sums, fmt, aps, seed, group, knobs)
    return sums


@takes_knobs
def emulate_all_reduce(
    tensors: Sequence[Tensor], fmt: How, *, aps: bool = False, seed: int = 0, **knobs: Any
) -> Tensor:
    """The sum of N equally shaped tensors as N machines form it: float32, of their shape.

    Bit for bit what `all_reduce` gives on each of N ranks that pass one of the tensors each. Raises TypeError where one
    is not floating point, ValueError for none, for unequal shapes, and as `all_reduce` does.
    """
    check_terms("emulate_all_reduce", tensors)
    for tensor in tensors:
        check_float(tensor)
    summation = _summation(Workers(len(tensors)), fmt, aps, knobs)
    stack_Nxn = torch.stack([tensor.detach().to(torch.float32).reshape(-1) for tensor in tensors])
    total_n = torch.empty_like(stack_Nxn[0])
    summation.run(Layers(["0"], [stack_Nxn], [total_n], (seed,)))
    return total_n.view(tensors[0].shape)


def _sum(
    tensors: Sequence[Tensor],
    out: Sequence[Tensor],
    fmt: How,
    aps: bool,
    seed: int,
    group: Group,
    knobs: dict[str, Any],
) -> None:
    """Writes the sums to `out`: contiguous float32 tensors, which may be `tensors` themselves."""
    workers = Workers.of_group(dist.get_world_size(group), group)
    summation = _summation(workers, fmt, aps, knobs)
    for tensor in tensors:
        check_float(tensor)
        if tensor.device != tensors[0].device:
            raise ValueError(
                f"tensors on {tensors[0].device} and {tensor.device}: one exchange takes one device"
            )
    if any(tensor.numel() for tensor in tensors):
        names = [str(p) for p in range(len(tensors))]
        stacks = [tensor.detach().to(torch.float32).reshape(1, -1) for tensor in tensors]
        summation.run(Layers(names, stacks, [target.detach().view(-1) for target in out], (seed,)))


def _summation(workers: Workers, fmt: How, aps: bool, knobs: dict[str, Any]) -> Summation:
    """Of a sum that is formed once, and remembers nothing."""
    how = Sum.of(fmt, **knobs)
    if how.error_feedback:
        raise ValueError(
            "error_feedback=true adds up over steps: take ddp_hook or AllReduceSync, which remember"
        )
    return summation_of(how, workers, Shifts(APS() if aps else None))
