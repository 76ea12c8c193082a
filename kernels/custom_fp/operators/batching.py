"""vmap rules of the operators.

A rule has the arguments (operator, info, in_dims, *arguments) that torch.library.register_vmap defines. It returns the
result and the batch dimension of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from custom_fp.formats.names import read
from custom_fp.operators.checks import check_axis

if TYPE_CHECKING:
    from custom_fp.operators.registration import Operator


def one_by_one(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    """Call the operator once for each element of the batch."""

    def select(argument: Any, dim: Any, i: int) -> Any:
        if isinstance(dim, list | tuple):
            return [select(a, d, i) for a, d in zip(argument, dim, strict=True)]
        return argument if dim is None else argument.select(dim, i)

    results = [
        operator(*(select(a, d, i) for a, d in zip(arguments, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return [torch.stack(parts) for parts in zip(*results, strict=True)], [0] * len(results[0])


def in_order(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
    """Raise RuntimeError: vmap cannot batch this operator, because its result depends on the order of the calls."""
    raise RuntimeError(
        "delayed scaling does not work under vmap, because it depends on the order in which tensors are processed"
    )


def elementwise(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    """Call the operator once on the whole batch, or once per element of the batch if several values share a scale.

    In a single call, stochastic rounding uses the index of each element within the batched tensor.
    """
    if any(read(arguments[i]).together != 1 for i in operator.formats):
        return one_by_one(operator, info, in_dims, *arguments)
    first, *rest = arguments
    dim = in_dims[0]
    if operator.takes_list:
        first, dim = [_batch_first(x, d, info.batch_size) for x, d in zip(first, dim, strict=True)], 0
    result = operator(first, *rest)
    return result, [dim] * len(result) if operator.gives_list else dim


def _batch_first(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def along_axis(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    """Move the batch dimension of the only tensor to the front, and adapt `axis` by counting it from the end."""
    i = [argument.name for argument in operator.op._schema.arguments].index("axis")
    x = arguments[0].movedim(in_dims[0], 0)
    rows = x if x.dim() > 1 else x.unsqueeze(-1)
    axis = check_axis(arguments[i], rows[0])
    assert axis is not None
    result = operator(rows, *arguments[1:i], axis - (rows.dim() - 1), *arguments[i + 1 :])
    return result.view(x.shape), 0


def matrix_product(operator: Operator, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    """Move the batch dimension of both factors to the front, and give both the same number of dimensions."""
    a, b, *rest = arguments
    a, b = (
        x.unsqueeze(0) if d is None else x.movedim(d, 0) for x, d in zip((a, b), in_dims[:2], strict=True)
    )
    rank = max(a.dim(), b.dim())
    a, b = (x.reshape(x.shape[0], *[1] * (rank - x.dim()), *x.shape[1:]) for x in (a, b))
    return operator(a, b, *rest), 0
