"""FSDP2's reduce-scatter in a format: each rank sends shard r of its packed gradients to rank r, which adds them.

FSDP hands over the gradients of one `fully_shard` call together, each parameter cut along its first dimension in one
part a rank, padded with zeros to equal ones, part r of all parameters after part r-1. Each parameter is a layer of its
own, as everywhere, with a shift of its own; a rank sends (N-1)/N n k/8 bytes, and its part of the sum has the bits that
the whole one has in `AllReduceSync`.

Legend: N ranks, P parameters, S the sum of their padded parts' sizes.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_api

from cpdrun.comm.sums.summations.base import Shards
from cpdrun.comm.sync import AllReduceSync
from cpdrun.comm.wire.cut import Cut, by_rows, width


class ReduceScatter(_fsdp_api.ReduceScatter):
    """Of the parameters of one `fully_shard` call, param_group. A subclass says whose sum it is."""

    def __init__(self, param_group: Any) -> None:
        self.param_group = param_group
        self.step = 0
        self._there: list[Any] | None = None  # the parameters with gradients, where torch tells
        self._input_is_next = False
        prepare = getattr(param_group, "_prepare_reduce_scatter_inputs", None)
        if prepare is not None:
            param_group._prepare_reduce_scatter_inputs = self._noting(prepare)

    @abstractmethod
    def sum_of(self, params: Sequence[Any], ranks: int) -> tuple[AllReduceSync, Sequence[int]]:
        """The sum of these parameters' gradients, and which of its layers they are."""

    def workers(self, ranks: int) -> int:
        """How many gradients the mean is of."""
        return ranks

    def done(self, params: Sequence[Any]) -> None:
        """After each of them."""

    def trainable(self) -> list[Any]:
        return [p for p in self.param_group.fsdp_params if p.sharded_param.requires_grad]

    def _noting(self, prepare: Callable) -> Callable:
        def noting(params: Sequence[Any], *given: Any) -> Any:
            self._there, self._input_is_next = list(params), True
            return prepare(params, *given)

        return noting

    def reduced(self, numel: int, ranks: int) -> list[Any]:
        """The parameters whose gradients have so many values, padded. Raises ValueError where nobody can tell."""
        params = self.trainable() if self._there is None else self._there
        if sum(width(p._orig_size, ranks) for p in params) * ranks != numel:
            raise ValueError(without_gradient(params))
        return params

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        is_input, self._input_is_next = self._input_is_next, False
        if is_input and device.type == "cpu":
            return _scratch(prod(size), dtype)
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """input_tensor: (N S,), overwritten; output_tensor: (S,)."""
        N, rank = group.size(), group.rank()
        params = self.reduced(input_tensor.numel(), N)
        sync, layers = self.sum_of(params, N)
        shapes = tuple(tuple(p._orig_size) for p in params)
        widths = [width(shape, N) for shape in shapes]
        values = input_tensor if input_tensor.dtype == torch.float32 else input_tensor.float()
        values.div_(self.workers(N))
        result = output_tensor if output_tensor.dtype == torch.float32 else output_tensor.float()
        cut = rows_of(shapes, N)
        mine = zip(result.zero_().split(widths), cut.of_owner(rank, len(params)), strict=True)
        out = [part[: own.stop - own.start] for part, own in mine]
        stacks = [part.unsqueeze(0) for part in values.view(N, -1).split(widths, dim=1)]
        shards = Shards(cut, tuple(map(prod, shapes)), apart=True)
        sync.reduce_layers(layers, stacks, step=self.step, epoch=0, out=out, shards=shards)
        if result is not output_tensor:
            output_tensor.copy_(result)
        self.step += 1
        self.done(params)


_scratches: dict[torch.dtype, Tensor] = {}


def _scratch(numel: int, dtype: torch.dtype) -> Tensor:
    """Memory for one input after the other, which a processor has read when the reduce-scatter is over: fresh memory
    costs more than to fill it."""
    if dtype not in _scratches or _scratches[dtype].numel() < numel:
        _scratches[dtype] = torch.empty(numel, dtype=dtype)
    return _scratches[dtype][:numel]


@lru_cache(maxsize=512)
def rows_of(shapes: tuple[tuple[int, ...], ...], ranks: int) -> Cut:
    """`by_rows`, once for each list of parameters."""
    return by_rows(shapes, ranks)


def without_gradient(params: Sequence[Any]) -> str:
    """What is wrong where one of FSDP's parameters beside these has none."""
    return (
        f"fully_shard: one beside {name_of(params[0])} ... has no gradient in this step, so that it cannot be told "
        "which are there: use all parameters, freeze the others, or call set_reduce_scatter_unused_params(True)"
    )


def name_of(param: Any) -> str:
    """Of one of FSDP's parameters, once the model has been called."""
    return param._param_fqn or param._module_info.param_name
