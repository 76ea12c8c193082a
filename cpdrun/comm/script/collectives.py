"""all_reduce in a number format for any script: each rank of a process group is one worker.

`fmt` is a format, its name, or a `Sum` with knobs of its own; further keywords are knobs of the sum (see `Sum`).
`compressor`: tensors are compressed instead, decoded and added in float32 in worker order; "power_sgd": their factors
are summed. `compressing.py` says which there are, and what they make of fmt and further keywords.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.formats.protocol import NumberFormat
from custom_fp.operators.checks import check_float, check_terms
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.script.compressor_names import check_format_or_compressor, make_compressed_sync
from cpdrun.comm.sums import summation_of
from cpdrun.comm.sums.scaling import APS, Shifts
from cpdrun.comm.sums.sum import Sum, accepts_sum_options
from cpdrun.comm.sums.summation import Layers
from cpdrun.comm.workers import Workers

How = Sum | NumberFormat | str | None
Group = dist.ProcessGroup | None


@accepts_sum_options
def all_reduce(
    tensor: Tensor,
    fmt: How = None,
    *,
    compressor: Compressor | str | None = None,
    aps: bool = False,
    seed: int = 0,
    group: Group = None,
    **knobs: Any,
) -> Tensor:
    """The sum of the ranks' tensors, formed in `fmt`, sent in its bits a value; a new float32 tensor.

    The same bits on every rank, and those of `emulate_all_reduce([of rank 0, of rank 1, ...])` with the same options:
    `Sum` says what the knobs are, `scaling.py` APS. A mean needs tensors divided by the number of ranks beforehand.
    Collective: same shape and options on every rank; with a seed of its own for each call where the rounding is
    stochastic. Raises ValueError for options that do not fit together, TypeError for neither fmt nor compressor,
    RankLost where another rank is gone.
    """
    how = {"compressor": compressor, "aps": aps, "seed": seed, "group": group}
    return all_reduce_coalesced([tensor], fmt, **how, **knobs)[0]


@accepts_sum_options
def all_reduce_(
    tensor: Tensor,
    fmt: How = None,
    *,
    compressor: Compressor | str | None = None,
    aps: bool = False,
    seed: int = 0,
    group: Group = None,
    **knobs: Any,
) -> Tensor:
    """`all_reduce` in place; returns the tensor."""
    in_place = tensor.dtype == torch.float32 and tensor.is_contiguous()
    total = tensor if in_place else torch.empty(tensor.shape, device=tensor.device)
    _SumRequest(fmt, compressor, aps, seed, knobs).between([tensor], [total], group)
    if not in_place:
        tensor.detach().copy_(total)
    return tensor


@accepts_sum_options
def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    fmt: How = None,
    *,
    compressor: Compressor | str | None = None,
    aps: bool = False,
    seed: int = 0,
    group: Group = None,
    **knobs: Any,
) -> list[Tensor]:
    """`all_reduce` of several tensors in one exchange; with APS each has a shift of its own."""
    sums = [
        torch.empty_like(tensor, dtype=torch.float32, memory_format=torch.contiguous_format)
        for tensor in tensors
    ]
    _SumRequest(fmt, compressor, aps, seed, knobs).between(tensors, sums, group)
    return sums


@accepts_sum_options
def emulate_all_reduce(
    tensors: Sequence[Tensor],
    fmt: How = None,
    *,
    compressor: Compressor | str | None = None,
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
    workers, stack = Workers(len(tensors)), torch.stack([t.detach().to(torch.float32) for t in tensors])
    total = torch.empty_like(stack[0], memory_format=torch.contiguous_format)
    _SumRequest(fmt, compressor, aps, seed, knobs).form([stack], [total], workers)
    return total


@dataclass(frozen=True)
class _SumRequest:
    """How a sum is to be formed, once."""

    fmt: How
    compressor: Compressor | str | None
    aps: bool
    seed: int
    knobs: dict[str, Any]

    def between(self, tensors: Sequence[Tensor], out: Sequence[Tensor], group: Group) -> None:
        """Of the ranks' tensors, to `out`: contiguous float32, and it may be `tensors` themselves."""
        for tensor in tensors:
            check_float(tensor)
            if tensor.device != tensors[0].device:
                raise ValueError(
                    f"tensors on {tensors[0].device} and {tensor.device}: one exchange takes one device"
                )
        workers = Workers.of_group(dist.get_world_size(group), group)
        stacks = [tensor.detach().to(torch.float32)[None] for tensor in tensors]
        self.form(stacks, [target.detach() for target in out], workers)

    def form(self, stacks: Sequence[Tensor], out: Sequence[Tensor], workers: Workers) -> None:
        """stacks[p]: (L, ...) float32 of this process's workers; out[p]: (...), contiguous."""
        check_format_or_compressor(self.fmt, self.compressor)
        names, key, rule = [str(p) for p in range(len(stacks))], (self.seed,), APS() if self.aps else None
        if self.compressor is not None:
            _check_forgets(self.knobs.get("error_feedback", False))
            knobs = self.knobs | {"error_feedback": False}
            sync = make_compressed_sync(
                self.compressor,
                self.fmt,
                names=names,
                world_size=workers.world_size,
                knobs=knobs,
                scaling=rule,
                seed=self.seed,
                group=workers,
            )
            sync.reduce_layers(range(len(names)), stacks, step=0, epoch=0, out=out)
            return
        assert self.fmt is not None  # check_asked
        how = Sum.of(self.fmt, **self.knobs)
        _check_forgets(how.error_feedback)
        summation = summation_of(how, workers, Shifts(rule))
        if any(stack.numel() for stack in stacks):
            flat = [stack.reshape(len(stack), -1) for stack in stacks]
            summation.run(Layers(names, flat, [total.view(-1) for total in out], key))


def _check_forgets(error_feedback: bool) -> None:
    if error_feedback:
        raise ValueError(
            "error_feedback=true adds up over steps: take ddp_hook or AllReduceSync, which remember"
        )
