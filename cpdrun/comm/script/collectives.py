"""Functions that scripts call instead of torch.distributed.all_reduce, to sum tensors in a number format.

Each rank of a process group is one worker.
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
    **options: Any,
) -> Tensor:
    """Return the sum of the ranks' tensors, computed and sent in a number format. Collective.

    The result is a new float32 tensor. It has the same bits on every rank, and the same bits as
    `emulate_all_reduce([tensor of rank 0, tensor of rank 1, ...])` with the same options. For a mean, divide the
    tensors by the number of ranks before the call.

    Args:
        tensor: A floating-point tensor. All ranks pass the same shape and options.
        fmt: A format, its name, or a `Sum`.
        compressor: A `Compressor`, or a name such as "top_k" (see conf/compressor). The tensors are then sent as
            compressed messages, and the decoded values are added in float32 in worker order. With "power_sgd", the
            factors are summed in `fmt`.
        aps: Whether to scale each tensor with auto-precision scaling (APS).
        seed: The seed of stochastic rounding. Pass a different seed in each call.
        group: The process group. None means the default group.
        options: Settings of `Sum`, or of the compressor.

    Raises:
        ValueError: The options do not fit together.
        TypeError: Neither a format nor a compressor is given.
        RankLost: Another rank is lost.
    """
    how = {"compressor": compressor, "aps": aps, "seed": seed, "group": group}
    return all_reduce_coalesced([tensor], fmt, **how, **options)[0]


@accepts_sum_options
def all_reduce_(
    tensor: Tensor,
    fmt: How = None,
    *,
    compressor: Compressor | str | None = None,
    aps: bool = False,
    seed: int = 0,
    group: Group = None,
    **options: Any,
) -> Tensor:
    """Compute `all_reduce` in place and return the tensor. Collective."""
    in_place = tensor.dtype == torch.float32 and tensor.is_contiguous()
    total = tensor if in_place else torch.empty(tensor.shape, device=tensor.device)
    _SumRequest(fmt, compressor, aps, seed, options).between([tensor], [total], group)
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
    **options: Any,
) -> list[Tensor]:
    """Compute `all_reduce` of several tensors in one exchange. Collective.

    With APS, each tensor has its own shift.
    """
    sums = [
        torch.empty_like(tensor, dtype=torch.float32, memory_format=torch.contiguous_format)
        for tensor in tensors
    ]
    _SumRequest(fmt, compressor, aps, seed, options).between(tensors, sums, group)
    return sums


@accepts_sum_options
def emulate_all_reduce(
    tensors: Sequence[Tensor],
    fmt: How = None,
    *,
    compressor: Compressor | str | None = None,
    aps: bool = False,
    seed: int = 0,
    **options: Any,
) -> Tensor:
    """Return the sum of N tensors of equal shape, as N machines would compute it.

    The result is a float32 tensor. It has the same bits as the result of `all_reduce` on N ranks, each of which passes
    one of the tensors.

    Args:
        tensors: Floating-point tensors of the same shape.
        fmt: A format, its name, or a `Sum`.
        compressor: See `all_reduce`.
        aps: See `all_reduce`.
        seed: See `all_reduce`.
        options: See `all_reduce`.

    Raises:
        TypeError: A tensor is not floating point, or neither a format nor a compressor is given.
        ValueError: There are no tensors, their shapes differ, or the options do not fit together.
    """
    check_terms("emulate_all_reduce", tensors)
    for tensor in tensors:
        check_float(tensor)
    workers, stack = Workers(len(tensors)), torch.stack([t.detach().to(torch.float32) for t in tensors])
    total = torch.empty_like(stack[0], memory_format=torch.contiguous_format)
    _SumRequest(fmt, compressor, aps, seed, options).form([stack], [total], workers)
    return total


@dataclass(frozen=True)
class _SumRequest:
    """The options of one sum."""

    fmt: How
    compressor: Compressor | str | None
    aps: bool
    seed: int
    options: dict[str, Any]

    def between(self, tensors: Sequence[Tensor], out: Sequence[Tensor], group: Group) -> None:
        """Write the sums of the ranks' tensors to `out`, which contains contiguous float32 tensors.

        `out` may be `tensors`.
        """
        for tensor in tensors:
            check_float(tensor)
            if tensor.device != tensors[0].device:
                raise ValueError(
                    f"all tensors must be on one device, but they are on {tensors[0].device} and {tensor.device}"
                )
        workers = Workers.of_group(dist.get_world_size(group), group)
        stacks = [tensor.detach().to(torch.float32)[None] for tensor in tensors]
        self.form(stacks, [target.detach() for target in out], workers)

    def form(self, stacks: Sequence[Tensor], out: Sequence[Tensor], workers: Workers) -> None:
        """Write the sums over all workers to `out`, which contains contiguous tensors (...).

        Each stack (L, ...), float32, contains the tensors of this process's L workers.
        """
        check_format_or_compressor(self.fmt, self.compressor)
        names, key, rule = [str(p) for p in range(len(stacks))], (self.seed,), APS() if self.aps else None
        if self.compressor is not None:
            _check_forgets(self.options.get("error_feedback", False))
            options = self.options | {"error_feedback": False}
            sync = make_compressed_sync(
                self.compressor,
                self.fmt,
                names=names,
                world_size=workers.world_size,
                options=options,
                scaling=rule,
                seed=self.seed,
                group=workers,
            )
            sync.reduce_layers(range(len(names)), stacks, step=0, epoch=0, out=out)
            return
        assert self.fmt is not None  # guaranteed by check_format_or_compressor
        how = Sum.of(self.fmt, **self.options)
        _check_forgets(how.error_feedback)
        summation = summation_of(how, workers, Shifts(rule))
        if any(stack.numel() for stack in stacks):
            flat = [stack.reshape(len(stack), -1) for stack in stacks]
            summation.run(Layers(names, flat, [total.view(-1) for total in out], key))


def _check_forgets(error_feedback: bool) -> None:
    if error_feedback:
        raise ValueError(
            "error_feedback=true needs state between steps, which this function does not keep. Use ddp_hook or "
            "AllReduceSync"
        )
