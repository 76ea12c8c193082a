"""Model parallelism: what M workers that share one layer send to each other, in a number format.

Two exchanges, the same in one process that plays all workers and between ranks, bit for bit:

    gather   every worker's part is encoded by itself and sent to all others; everyone, its owner too, uses the decoded
             values, so that all workers go on with the same ones. (M-1) parts sent by each.
    sum      the parts are encoded, decoded, added in float32 in worker order and encoded once more: decoded.py with
             requantise=once. 2 (M-1)/M of a part sent by each, on average.

One worker sends nothing, and nothing is rounded. A codebook without a block size takes one scale from each worker's
part.

A fully connected layer whose weights are split over M workers; what they exchange is in a number format.

Model parallelism of Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (arXiv:1511.04561), and of
Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (arXiv:1404.5997): all workers see the
same samples, each holds a part of the weights.

    split     worker m holds       forward                               backward
    columns   outputs O_m          y = gather(x W_m^T + b_m)             dx = sum(dy_m W_m)
    rows      inputs I_m           y = sum(x_m W_m^T) + b                dx = gather(dy W_m)

gather and sum are those of `workers.py`: activations y travel in one format, errors dx in another; dW_m is computed
where W_m is, and does not travel. dx is exchanged only where somebody asks for it (not for the samples).

Legend: B samples, I inputs, O outputs.

Where layers that workers split by samples meet layers that they split by weights: see `models/parallel/convnet.py`.

Legend: B samples, M workers, F features at the seam.
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
    """The M workers of a model, of which this rank plays its share.

    Counts, since the last `reset`: sent_bytes by this rank to others, real_worker_bytes by each of M machines (the one
    that sends most in a gather, the average in a sum).
    """

    def __init__(self, workers: Workers) -> None:
        self.workers, self.mine = workers, workers.mine
        self.reset()

    @property
    def number(self) -> int:
        """M."""
        return self.workers.world_size

    def reset(self) -> None:
        self.sent_bytes = self.real_worker_bytes = 0

    def slices(self, size: int) -> list[slice]:
        """The part of a dimension that each worker holds; sizes differ by one at most."""
        ends = [size * m // self.number for m in range(self.number + 1)]
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def gather(self, parts: Sequence[Tensor], size: int, fmt: NumberFormat, dim: int = 1) -> Tensor:
        """parts[i]: (B, n_m) float32 of my i-th worker, its slice of `size` columns; (B, size) of all. Collective.

        dim=0: slices of rows, (n_m, F), to (size, F).
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
        sizes = [sum(packed[m] for m in self.workers.played_by(r)) for r in range(ranks)]
        received = Communicator(self.workers.group).swap([own] * ranks, sizes, Tag.PARTS)
        self.sent_bytes += (ranks - 1) * own.numel()
        payloads = torch.cat(received).split(packed)
        decoded = [custom_fp.unpack(data, fmt, shape) for data, shape in zip(payloads, shapes, strict=True)]
        return torch.cat(decoded, dim=dim)

    def sum(self, parts: Sequence[Tensor], fmt: NumberFormat) -> Tensor:
        """parts[i]: float32 summand of my i-th worker, all of one shape; the sum over all workers. Collective."""
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
    """The workers that share its layers; none for a model that is whole."""
    found = (getattr(module, "workers", None) for module in model.modules())
    return list(dict.fromkeys(workers for workers in found if isinstance(workers, ModelWorkers)))


SPLITS = ("columns", "rows")


class ParallelLinear(nn.Module):
    """torch.nn.Linear over `workers`; parameters weight_<m> (and bias_<m> of columns, bias of rows) of my workers.

    The initial weights are torch.nn.Linear's, drawn whole from torch's generator and cut: they do not depend on how
    workers are dealt to ranks. With one worker nothing is exchanged and nothing rounded. Raises ValueError for an
    unknown split or format.
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
        for m in workers.mine:
            part = self.slices[m]
            weight = whole.weight[part] if split == "columns" else whole.weight[:, part]
            self.register_parameter(f"weight_{m}", nn.Parameter(weight.detach().clone()))
            if split == "columns":
                self.register_parameter(f"bias_{m}", nn.Parameter(whole.bias[part].detach().clone()))
        if split == "rows":
            self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        x_BxI = x.reshape(-1, self.in_features)
        weights = [getattr(self, f"weight_{m}") for m in self.workers.mine]
        if self.split == "columns":
            biases = [getattr(self, f"bias_{m}") for m in self.workers.mine]
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
        of_worker = [grad_BxO[:, layer.slices[m]] for m in layer.workers.mine]
        grad_x = None
        if ctx.needs_input_grad[1]:
            grad_x = layer.workers.sum([g @ w for g, w in zip(of_worker, weights, strict=True)], layer.errors)
        return None, grad_x, *(g.t() @ x_BxI for g in of_worker), *(g.sum(0) for g in of_worker)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: ParallelLinear, x_BxI: Tensor, *weights: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x_BxI, *weights)
        slices = [layer.slices[m] for m in layer.workers.mine]
        parts = [F.linear(x_BxI[:, part], w) for part, w in zip(slices, weights, strict=True)]
        return layer.workers.sum(parts, layer.activations)

    @staticmethod
    def backward(ctx: Any, grad_BxO: Tensor):
        layer, (x_BxI, *weights) = ctx.layer, ctx.saved_tensors
        grad_x = None
        if ctx.needs_input_grad[1]:
            grad_x = layer.workers.gather([grad_BxO @ w for w in weights], layer.in_features, layer.errors)
        slices = [layer.slices[m] for m in layer.workers.mine]
        return None, grad_x, *(grad_BxO.t() @ x_BxI[:, part] for part in slices)


class ReplicatedWeight(torch.autograd.Function):
    """A weight as each of my workers holds it; their gradients are added over all workers in a format."""

    @staticmethod
    def forward(ctx: Any, workers: ModelWorkers, fmt: NumberFormat, mine: int, weight: Tensor):
        ctx.workers, ctx.fmt = workers, fmt
        return tuple(weight.view_as(weight) for _ in range(mine))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor):
        return None, None, None, ctx.workers.sum(gradients, ctx.fmt)


class GatherBatch(torch.autograd.Function):
    """Each worker's features (B_m, F) become all of them (B, F), each share encoded by itself. The gradient is the same
    on all workers already, and each takes its own rows."""

    @staticmethod
    def forward(
        ctx: Any, workers: ModelWorkers, fmt: NumberFormat, samples: int, *features: Tensor
    ) -> Tensor:
        ctx.rows = [workers.slices(samples)[m] for m in workers.mine]
        return workers.gather(features, samples, fmt, dim=0)

    @staticmethod
    def backward(ctx: Any, grad_BxF: Tensor):
        return None, None, None, *(grad_BxF[rows] for rows in ctx.rows)
