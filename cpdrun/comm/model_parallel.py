"""Model parallelism: layers that M workers share, with communication in a number format.

Workers exchange data in two ways. Both compute the same bits in one process that emulates all workers as between ranks.

    gather   Each worker encodes its part of a tensor and sends it to all others. All workers, including the owner, use
             the decoded values, so all continue with the same values. Each worker sends (M-1) times the bytes of its
             part.
    sum      Each worker has a tensor of the same shape. The tensors are encoded, decoded, added in float32 in worker
             order and encoded once more, as in `sums/requantized_sum.py` with requantise=once. Each worker sends 2
             (M-1)/M times the bytes of its tensor on average.

A single worker sends and rounds nothing. A codebook without a block size has one scale for each worker's part.

The split of fully connected layers follows Dettmers, "8-Bit Approximations for Parallelism in Deep Learning"
(arXiv:1511.04561), and Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (arXiv:1404.5997).
All workers process the same samples, and each has a part of the weights:

    split     worker m has         forward                               backward
    columns   outputs O_m          y = gather(x W_m^T + b_m)             dx = sum(dy_m W_m)
    rows      inputs I_m           y = sum(x_m W_m^T) + b                dx = gather(dy W_m)

Activations y and errors dx have separate formats. dW_m is computed where W_m is stored and is not sent. dx is not
exchanged if x does not require a gradient, as in the first layer.

`GatherBatch` and `ReplicatedWeight` connect layers that are split by samples with layers that are split by weights (see
`models/parallel/parallel_convnet.py`).

Shapes: B samples, I inputs, O outputs, F features, M workers.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import custom_fp
import torch
import torch.nn.functional as F
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor, nn

from cpdrun.comm.sums import summation_of
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summation import Layers
from cpdrun.comm.wire import Tag
from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.workers import Workers


class ModelWorkers:
    """The M workers of a model, some of which this rank emulates.

    Attributes:
        sent_bytes: The bytes that this rank sent to others since the last `reset`.
        real_worker_bytes: The bytes that a worker on its own machine would send. A gather counts the worker that sends
            the most, and a sum counts the average over workers.
    """

    def __init__(self, workers: Workers) -> None:
        self.workers, self.local = workers, workers.local
        self.reset()

    @property
    def number(self) -> int:
        """The number of workers M."""
        return self.workers.world_size

    def reset(self) -> None:
        """Reset the byte counts."""
        self.sent_bytes = self.real_worker_bytes = 0

    def slices(self, size: int) -> list[slice]:
        """Return the slice of a dimension of this size that each worker owns. The lengths differ by at most one."""
        ends = [size * m // self.number for m in range(self.number + 1)]
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def gather(self, parts: Sequence[Tensor], size: int, fmt: NumberFormat, dim: int = 1) -> Tensor:
        """Concatenate the parts of all workers. Collective.

        Args:
            parts: For each worker of this rank, its slice of the tensor, float32: (B, n_m), or (n_m, F) with dim=0.
            size: The size of the whole dimension.
            fmt: The format of the exchange.
            dim: The dimension that is split.

        Returns:
            The whole tensor (B, size), or (size, F) with dim=0.
        """
        if self.number == 1:
            return parts[0]
        across = parts[0].shape[1 - dim]
        widths = [part.stop - part.start for part in self.slices(size)]
        shapes = [(across, width) if dim == 1 else (width, across) for width in widths]
        packed = [custom_fp.packed_size(across * width, fmt) for width in widths]
        self.real_worker_bytes += (self.number - 1) * max(packed)
        if self.workers.ranks == 1:
            return torch.cat([custom_fp.quantize(part, fmt) for part in parts], dim=dim)
        ranks = self.workers.ranks
        own = torch.cat([custom_fp.pack(part, fmt) for part in parts])
        sizes = [sum(packed[m] for m in self.workers.emulated_by(r)) for r in range(ranks)]
        received = Communicator(self.workers.group).swap([own] * ranks, sizes, Tag.PARTS)
        self.sent_bytes += (ranks - 1) * own.numel()
        payloads = torch.cat(received).split(packed)
        decoded = [custom_fp.unpack(data, fmt, shape) for data, shape in zip(payloads, shapes, strict=True)]
        return torch.cat(decoded, dim=dim)

    def sum(self, parts: Sequence[Tensor], fmt: NumberFormat) -> Tensor:
        """Return the sum of one tensor per worker. Collective.

        Args:
            parts: For each worker of this rank, a float32 tensor. All have the same shape.
            fmt: The format of the exchange.
        """
        if self.number == 1:
            return parts[0]
        total = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
        stack_LxN = torch.stack(list(parts)).reshape(len(parts), -1)
        summation = summation_of(Sum(fmt, requantise="once"), self.workers)
        done = summation.run(Layers(["sum"], [stack_LxN], [total.view(-1)]))
        self.sent_bytes += done.sent_bytes
        self.real_worker_bytes += done.real_worker_bytes
        return total


def model_workers_of(model: nn.Module) -> list[ModelWorkers]:
    """Return the workers that share the layers of a model. The list is empty if no layer is split."""
    found = (getattr(module, "workers", None) for module in model.modules())
    return list(dict.fromkeys(workers for workers in found if isinstance(workers, ModelWorkers)))


SPLITS = ("columns", "rows")


class ParallelLinear(nn.Module):
    """A version of torch.nn.Linear whose weights are divided among several workers.

    The parameters are weight_<m> for each worker m of this rank, and bias_<m> (split into columns) or bias (split into
    rows). The initial weights are generated as in torch.nn.Linear for the whole layer and then split, so they do not
    depend on the assignment of workers to ranks. With one worker, nothing is exchanged or rounded.

    Raises:
        ValueError: The split or a format is unknown.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        workers: ModelWorkers,
        split: str,
        activations: str | NumberFormat,
        errors: str | NumberFormat,
    ) -> None:
        super().__init__()
        if split not in SPLITS:
            raise ValueError(f"split={split!r}: choose one of {', '.join(SPLITS)}")
        self.in_features, self.out_features = in_features, out_features
        self.split, self.workers = split, workers
        self.activations, self.errors = parse(activations), parse(errors)
        whole = nn.Linear(in_features, out_features)
        self.slices = workers.slices(out_features if split == "columns" else in_features)
        for m in workers.local:
            part = self.slices[m]
            weight = whole.weight[part] if split == "columns" else whole.weight[:, part]
            self.register_parameter(f"weight_{m}", nn.Parameter(weight.detach().clone()))
            if split == "columns":
                self.register_parameter(f"bias_{m}", nn.Parameter(whole.bias[part].detach().clone()))
        if split == "rows":
            self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        x_BxI = x.reshape(-1, self.in_features)
        weights = [getattr(self, f"weight_{m}") for m in self.workers.local]
        if self.split == "columns":
            biases = [getattr(self, f"bias_{m}") for m in self.workers.local]
            y_BxO = _Columns.apply(self, x_BxI, *weights, *biases)
        else:
            y_BxO = _Rows.apply(self, x_BxI, *weights) + self.bias
        return y_BxO.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, {self.split} over {self.workers.number} workers, "
            f"activations={self.activations}, errors={self.errors}"
        )


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: ParallelLinear, x_BxI: Tensor, *parameters: Tensor) -> Tensor:
        ctx.layer = layer
        half = len(parameters) // 2
        weights, biases = parameters[:half], parameters[half:]
        ctx.save_for_backward(x_BxI, *weights)
        parts = [F.linear(x_BxI, w, b) for w, b in zip(weights, biases, strict=True)]
        return layer.workers.gather(parts, layer.out_features, layer.activations)

    @staticmethod
    def backward(ctx: Any, grad_BxO: Tensor):
        layer, (x_BxI, *weights) = ctx.layer, ctx.saved_tensors
        of_worker = [grad_BxO[:, layer.slices[m]] for m in layer.workers.local]
        grad_x = None
        if ctx.needs_input_grad[1]:
            grad_x = layer.workers.sum([g @ w for g, w in zip(of_worker, weights, strict=True)], layer.errors)
        return None, grad_x, *(g.t() @ x_BxI for g in of_worker), *(g.sum(0) for g in of_worker)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: ParallelLinear, x_BxI: Tensor, *weights: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x_BxI, *weights)
        slices = [layer.slices[m] for m in layer.workers.local]
        parts = [F.linear(x_BxI[:, part], w) for part, w in zip(slices, weights, strict=True)]
        return layer.workers.sum(parts, layer.activations)

    @staticmethod
    def backward(ctx: Any, grad_BxO: Tensor):
        layer, (x_BxI, *weights) = ctx.layer, ctx.saved_tensors
        grad_x = None
        if ctx.needs_input_grad[1]:
            grad_x = layer.workers.gather([grad_BxO @ w for w in weights], layer.in_features, layer.errors)
        slices = [layer.slices[m] for m in layer.workers.local]
        return None, grad_x, *(grad_BxO.t() @ x_BxI[:, part] for part in slices)


class ReplicatedWeight(torch.autograd.Function):
    """Copy a weight for each of this rank's workers.

    The backward pass sums the gradients of all workers' copies in a number format.
    """

    @staticmethod
    def forward(ctx: Any, workers: ModelWorkers, fmt: NumberFormat, mine: int, weight: Tensor):
        ctx.workers, ctx.fmt = workers, fmt
        return tuple(weight.view_as(weight) for _ in range(mine))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor):
        return None, None, None, ctx.workers.sum(gradients, ctx.fmt)


class GatherBatch(torch.autograd.Function):
    """Gather the features (B_m, F) of all workers to the whole batch (B, F).

    Each worker's part is encoded separately. In the backward pass, the gradient of the whole batch is already equal on
    all workers, so each worker uses the rows of its own samples, and nothing is exchanged.
    """

    @staticmethod
    def forward(
        ctx: Any, workers: ModelWorkers, fmt: NumberFormat, samples: int, *features: Tensor
    ) -> Tensor:
        ctx.rows = [workers.slices(samples)[m] for m in workers.local]
        return workers.gather(features, samples, fmt, dim=0)

    @staticmethod
    def backward(ctx: Any, grad_BxF: Tensor):
        return None, None, None, *(grad_BxF[rows] for rows in ctx.rows)
