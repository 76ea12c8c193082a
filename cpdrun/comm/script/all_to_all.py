"""All-to-all exchange of tokens in a number format, between the ranks over which a model's experts are distributed.

In every block, a mixture of experts sends each token to the ranks of its experts, and the ranks send the results back.
The backward pass sends the gradients in the same way. DeepSeek-V3 (arXiv 2412.19437, section 3.3.3) sends the tokens in
fp8 and the results in bf16.

Shapes: S tokens, D channels.
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
    """Send rows to the ranks of a process group, and return the rows received from them. Collective.

    The function replaces `torch.distributed.all_to_all_single`. In the backward pass, the gradients of the received
    rows are sent back to the ranks that the rows came from. Each row is rounded once, even if it stays on its rank.

    If a format has scales for blocks, each block lies within a row. The received values therefore equal those of
    `emulate_all_to_all`, for any number of ranks. Formats with one scale per tensor are an exception, because they use
    a separate scale for each pair of ranks.

    Args:
        x_SxD: The rows to send, floating-point. The rows for rank 0 come first, then the rows for rank 1, and so on.
        output_splits: The number of rows that this rank receives from each rank.
        input_splits: The number of rows that this rank sends to each rank.
        fmt: The format of the rows.
        gradient_format: The format of the gradients. The default, fp32, leaves them unrounded.
        group: The process group. None means the default group.

    Returns:
        The received rows in the dtype of x, sorted by the rank that sent them.

    Raises:
        ValueError: If the splits do not match the shape of x or the number of ranks.
        RankLost: If another rank is lost.
    """
    communicator = Communicator(group)
    splits = {"output_splits": list(output_splits), "input_splits": list(input_splits)}
    for name, counts in splits.items():
        if len(counts) != communicator.ranks or min(counts) < 0:
            raise ValueError(
                f"{name}={counts} must contain a number of rows, at least 0, for each of the {communicator.ranks} ranks"
            )
    if x_SxD.dim() != 2 or sum(input_splits) != len(x_SxD):
        raise ValueError(
            f"input_splits={splits['input_splits']} must add up to the number of rows of a 2-D tensor, but the tensor "
            f"has shape {tuple(x_SxD.shape)}"
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
        gradient_format: The format of the gradients. The default, fp32, leaves them unrounded.

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
