"""all_reduce in a number format for any script: each rank of a process group is one worker."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from custom_fp.checks import check_float
from custom_fp.formats.names import AnyFormat
from torch import Tensor

from cpdrun.comm.sums.exchange import Exchange
from cpdrun.comm.sums.recipe import AUTO, Recipe
from cpdrun.comm.sums.requantised import Requantised, recipe_for, sum_layers
from cpdrun.comm.sums.scaling import APS, NoScaling
from cpdrun.comm.workers import Workers

_exchanges: WeakKeyDictionary[dist.ProcessGroup, Exchange] = WeakKeyDictionary()


def all_reduce(
    tensor: Tensor,
    fmt: AnyFormat | str,
    *,
    aps: bool = False,
    kahan: bool = False,
    order: str = "rank",
    group_size: int | str | None = AUTO,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """The sum of the ranks' tensors, formed in `fmt`, sent in its bits a value; a new float32 tensor.

    The same bits on every rank, and those of `emulate_all_reduce([of rank 0, of rank 1, ...])` with the same
    options: `recipe.py` defines the orders, `custom_fp.quantize` rounding and overflow, `scaling.py` APS,
    `requantised.py` the sum in a format with scales (hop by hop, or as a `Requantised` in place of fmt says). A
    mean needs tensors divided by the number of ranks beforehand. Collective: same shape and options on every
    rank; with a seed of its own for each call where the rounding is stochastic. Raises ValueError for
    options that do not fit together, RankLost where another rank is gone.
    """
    recipe = recipe_for(
        fmt,
        order=order,
        group_size=group_size,
        kahan=kahan,
        rounding=rounding,
        overflow=overflow,
        scaled=aps,
        n_workers=dist.get_world_size(group),
    )
    total = torch.empty_like(tensor, dtype=torch.float32, memory_format=torch.contiguous_format)
    _sum([tensor], [total], recipe, aps, seed, group)
    return total


def all_reduce_(
    tensor: Tensor,
    fmt: AnyFormat | str,
    *,
    aps: bool = False,
    kahan: bool = False,
    order: str = "rank",
    group_size: int | str | None = AUTO,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """`all_reduce` in place; returns the tensor."""
    recipe = recipe_for(
        fmt,
        order=order,
        group_size=group_size,
        kahan=kahan,
        rounding=rounding,
        overflow=overflow,
        scaled=aps,
        n_workers=dist.get_world_size(group),
    )
    in_place = tensor.dtype == torch.float32 and tensor.is_contiguous()
    total = (
        tensor
        if in_place
        else torch.empty_like(tensor, dtype=torch.float32, memory_format=torch.contiguous_format)
    )
    _sum([tensor], [total], recipe, aps, seed, group)
    return tensor if in_place else tensor.copy_(total)


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    fmt: AnyFormat | str,
    *,
    aps: bool = False,
    kahan: bool = False,
    order: str = "rank",
    group_size: int | str | None = AUTO,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
) -> list[Tensor]:
    """`all_reduce` of several tensors in one exchange; with APS each has a shift of its own."""
    recipe = recipe_for(
        fmt,
        order=order,
        group_size=group_size,
        kahan=kahan,
        rounding=rounding,
        overflow=overflow,
        scaled=aps,
        n_workers=dist.get_world_size(group),
    )
    sums = [
        torch.empty_like(tensor, dtype=torch.float32, memory_format=torch.contiguous_format)
        for tensor in tensors
    ]
    _sum(tensors, sums, recipe, aps, seed, group)
    return sums


def exchange_of(group: dist.ProcessGroup | None) -> Exchange:
    """The exchange of a process group, whose buffers all callers share: one call at a time."""
    process_group = group or dist.group.WORLD
    if process_group not in _exchanges:
        _exchanges[process_group] = Exchange(group)
    return _exchanges[process_group]


def _sum(
    tensors: Sequence[Tensor],
    out: Sequence[Tensor],
    recipe: Recipe | Requantised,
    aps: bool,
    seed: int,
    group: dist.ProcessGroup | None,
) -> None:
    """Writes the sums to `out`: contiguous float32 tensors, which may be `tensors` themselves."""
    for tensor in tensors:
        check_float(tensor)
    if not any(tensor.numel() for tensor in tensors):
        return
    flat = [tensor.detach().to(torch.float32).reshape(-1) for tensor in tensors]
    if isinstance(recipe, Requantised):
        stacks, targets = [x_n[None] for x_n in flat], [target.detach().view(-1) for target in out]
        sum_layers(stacks, recipe, Workers.of_group(dist.get_world_size(group), group), out=targets)
        return
    exchange = exchange_of(group)
    names = [str(p) for p in range(len(flat))]
    targets = [target.detach().view(-1) for target in out]
    exchange.sum_layers([flat], names, recipe, APS() if aps else NoScaling(), key=(seed,), out=targets)
