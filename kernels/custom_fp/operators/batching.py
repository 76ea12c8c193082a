"""vmap of an operator: rules take (operator, info, in_dims, *arguments), as torch.library.register_vmap has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from custom_fp.formats.names import read
from custom_fp.operators.checks import check_axis

if TYPE_CHECKING:
    from custom_fp.operators.registration import Operator


def one_at_a_time(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    """One call for each of the batch."""

    def pick(argument: Any, dim: Any, i: int) -> Any:
        if isinstance(dim, list | tuple):
            return [pick(a, d, i) for a, d in zip(argument, dim, strict=True)]
        return argument if dim is None else argument.select(dim, i)

    each = [
        operator(*(pick(a, d, i) for a, d in zip(arguments, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(each[0], Tensor):
        return torch.stack(each), 0
    return [torch.stack(parts) for parts in zip(*each, strict=True)], [0] * len(each[0])


def all_at_once(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    """The whole batch as one tensor, but for formats that round values together. Stochastic rounding then draws by the
    index in the batched tensor."""
    if any(read(arguments[i]).together != 1 for i in operator.formats):
        return one_at_a_time(operator, info, in_dims, *arguments)
    first, *rest = arguments
    dim = in_dims[0]
    if operator.takes_list:
        first, dim = [_in_front(x, d, info.batch_size) for x, d in zip(first, dim, strict=True)], 0
    result = operator(first, *rest)
    return result, [dim] * len(result) if operator.gives_list else dim


def _in_front(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def along_an_axis(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    """The vmapped dimension in front of one tensor, whose `axis` is counted from the end."""
    i = [argument.name for argument in operator.op._schema.arguments].index("axis")
    x = arguments[0].movedim(in_dims[0], 0)
    rows = x if x.dim() > 1 else x.unsqueeze(-1)
    axis = check_axis(arguments[i], rows[0]) - (rows.dim() - 1)
    return operator(rows, *arguments[1:i], axis, *arguments[i + 1 :]).view(x.shape), 0


def matrices(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    """The vmapped dimension in front of both factors, and ranks made equal behind it."""
    a, b, *rest = arguments
    a, b = (
        x.unsqueeze(0) if d is None else x.movedim(d, 0) for x, d in zip((a, b), in_dims[:2], strict=True)
    )
    rank = max(a.dim(), b.dim())
    a, b = (x.reshape(x.shape[0], *[1] * (rank - x.dim()), *x.shape[1:]) for x in (a, b))
    return operator(a, b, *rest), 0
