"""A fully connected layer whose weights are split over M workers; what they exchange is in a number format.

Model parallelism of Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (arXiv:1511.04561), and of
Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (arXiv:1404.5997): all workers see the
same samples, each holds a part of the weights.

    split     worker m holds       forward                               backward
    columns   outputs O_m          y = gather(x W_m^T + b_m)             dx = sum(dy_m W_m)
    rows      inputs I_m           y = sum(x_m W_m^T) + b                dx = gather(dy W_m)

gather and sum are those of `workers.py`: activations y travel in one format, errors dx in another; dW_m is computed
where W_m is, and does not travel. dx is exchanged only where somebody asks for it (not for the samples).

Legend: B samples, I inputs, O outputs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor, nn

from cpdrun.comm.parallel.workers import ModelWorkers

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
