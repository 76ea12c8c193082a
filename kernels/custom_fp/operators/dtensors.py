"""Operators on DTensors, the tensors of tensor-parallel models.

`quantize` rounds each shard separately. If a block spans several ranks, the tensor is first replicated on all ranks.
The result is the same as for the full tensor. Other operators raise TypeError for DTensors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from custom_fp.formats.names import read
from custom_fp.formats.protocol import NumberFormat
from custom_fp.rounding import is_stochastic

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_REASONS = {
    "quantize_delayed": "delayed scaling does not support tensor parallelism, because a rank sees only a part of each "
    "tensor; use a recipe without history, such as fp8_tensorwise",
    "matmul": "emulated accumulators do not support tensor parallelism; use a recipe without rules for accumulator",
}


def is_sharded(x: object) -> TypeGuard[DTensor]:
    """Return whether x is a DTensor. The check does not import torch.distributed.tensor, because that is slow."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def shardable(name: str, arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments of an operator, with the DTensor redistributed so that each shard can be rounded separately.

    Args:
        name: The name of the operator.
        arguments: The arguments of the operator in torch.ops.custom_fp. The first argument is the DTensor.

    Raises:
        TypeError: If the operator does not support DTensors.
        ValueError: If the rounding mode is stochastic.
    """
    x: Any = arguments[0]
    if name != "quantize":
        reason = _REASONS.get(
            name, f"{name} does not support DTensors; call to_local() or full_tensor() first"
        )
        raise TypeError(reason)
    given: list[Any] = [*arguments, *[None] * (7 - len(arguments))]  # trailing arguments may be missing
    fmt, rounding, axis = given[1], given[2], given[6]
    if is_stochastic(rounding):
        raise ValueError(
            f"rounding is {rounding!r}, but the random bits of an element depend on its position in the whole tensor, "
            "and each rank has only a part of a DTensor; use nearest_even"
        )
    _register()
    free = _free_dimensions(read(fmt), x.dim(), axis)
    placements = [_kept(placement, free) for placement in x.placements]
    return [x.redistribute(placements=placements), *arguments[1:]]


def _free_dimensions(fmt: NumberFormat, dimensions: int, axis: int | None) -> set[int]:
    """Return the dimensions along which a tensor can be sharded without splitting a block."""
    if fmt.together == 1:
        return set(range(dimensions))
    if axis is None or not fmt.has_axis or fmt.has_tiles or fmt.has_tensor_scale:
        return set()
    return set(range(dimensions)) - {axis % dimensions}


def _kept(placement: Any, free: set[int]) -> Any:
    from torch.distributed.tensor import Replicate

    return placement if placement.is_shard() and placement.dim in free else Replicate()


@cache
def _register() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(torch.ops.custom_fp.quantize.default)
    def _(x: Tensor, *rest: Any) -> list[tuple[list[Any], list[Any]]]:
        nothing = [None] * len(rest)
        placements = [Replicate(), *(Shard(dim) for dim in range(x.ndim))]
        return [([placement], [placement, *nothing]) for placement in placements]
