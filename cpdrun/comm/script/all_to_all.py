"""All-to-all exchange of tokens in a number format, between the ranks that share the experts of a model.

A mixture of experts sends each token to the ranks of its experts and sends the results back, in every block and in both
passes. DeepSeek-V3 (arXiv 2412.19437, section 3.3.3) sends tokens to the experts in fp8 and the results in bf16.

Legend: S tokens, D channels.
"""

from collections.abc import Sequence
from typing import Any

import custom_fp
import torch
import torch.distributed as dist
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.wire import Tag
from cpdrun.comm.wire.communicator import Communicator


def all_to_all(
    x_SxD: Tensor,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
    fmt: NumberFormat | str,
    *,
    gradient_format: NumberFormat | str = "fp32",
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Send rows to the ranks of a process group, and return the rows that they send. Collective.

    The function replaces `torch.distributed.all_to_all_single`. In the backward pass, the gradients of received rows
    return to the ranks that sent them. Each row is rounded once, even if it stays on its rank. Formats with scales form
    their blocks within a row. The result then equals `emulate_all_to_all` for any number of ranks. A format with one
    scale for the tensor has one for each pair of ranks instead.

    Args:
        x_SxD: The rows, floating-point: first those for rank 0, then those for rank 1, and so on.
        output_splits: For each rank, the number of rows that it sends to this rank.
        input_splits: For each rank, the number of rows that this rank sends to it.
        fmt: The format of the rows.
        gradient_format: The format of the gradients. fp32 rounds nothing.
        group: The process group. None means the default group.

    Returns:
        The received rows in the dtype of x, in the order of the ranks.

    Raises:
        ValueError: The splits do not fit to the rows or to the group.
        RankLost: Another rank is lost.
    """
    communicator = Communicator(group)
    splits = {"output_splits": list(output_splits), "input_splits": list(input_splits)}
    for name, counts in splits.items():
        if len(counts) != communicator.ranks or min(counts) < 0:
            raise ValueError(
                f"{name}={counts}: give a number of rows, at least 0, for each of {communicator.ranks} ranks"
            )
    if x_SxD.dim() != 2 or sum(input_splits) != len(x_SxD):
        raise ValueError(
            f"input_splits={splits['input_splits']} do not split a tensor of shape {tuple(x_SxD.shape)}"
        )
    formats = parse(fmt), parse(gradient_format)
    return _Exchange.apply(x_SxD, *splits.values(), *formats, communicator)


def emulate_all_to_all(
    x_SxD: Tensor, fmt: NumberFormat | str, *, gradient_format: NumberFormat | str = "fp32"
) -> Tensor:
    """Round rows and their gradients as `all_to_all` does, without sending them.

    Args:
        x_SxD: The rows, floating-point.
        fmt: The format of the rows.
        gradient_format: The format of the gradients. fp32 rounds nothing.

    Returns:
        The rounded rows in the dtype of x.
    """
    return _Exchange.apply(x_SxD, [len(x_SxD)], [len(x_SxD)], parse(fmt), parse(gradient_format), None)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        x_SxD: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        fmt: NumberFormat,
        gradient_format: NumberFormat,
        communicator: Communicator | None,
    ) -> Tensor:
        return _exchange(x_SxD, output_splits, input_splits, fmt, communicator)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, *ctx.splits, _, ctx.gradient_format, ctx.communicator = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        output_splits, input_splits = ctx.splits
        grad = _exchange(grad, input_splits, output_splits, ctx.gradient_format, ctx.communicator)
        return grad, None, None, None, None, None


def _exchange(
    x_SxD: Tensor,
    output_splits: list[int],
    input_splits: list[int],
    fmt: NumberFormat,
    communicator: Communicator | None,
) -> Tensor:
    if communicator is None or communicator.ranks == 1:
        return custom_fp.quantize(x_SxD.detach(), fmt, axis=-1).to(x_SxD.dtype)
    shapes = [(count, x_SxD.shape[1]) for count in output_splits]
    sent = [custom_fp.pack(rows, fmt, axis=-1) for rows in x_SxD.detach().split(input_splits)]
    sizes = [custom_fp.packed_size(shape, fmt, axis=-1) for shape in shapes]
    received = communicator.swap(sent, sizes, Tag.ROWS)
    rows = [custom_fp.unpack(data, fmt, shape, axis=-1) for data, shape in zip(received, shapes, strict=True)]
    return torch.cat(rows).to(x_SxD.dtype)
