"""A perceptron whose layers are split over workers."""

import torch.nn.functional as F
from torch import Tensor, nn

from cpdrun.comm.model_parallel import SPLITS, ModelWorkers, ParallelLinear
from cpdrun.comm.workers import Workers


class ParallelMLP(nn.Module):
    """A perceptron of `ParallelLinear` layers.

    The network takes inputs (B, ...) float32 of `in_features` values each and returns logits (B, num_classes) float32.

    Args:
        in_features: The number of values of an input.
        num_classes: The number of classes.
        width: The number of outputs of each hidden layer.
        depth: The number of hidden layers.
        workers: The number of workers, all emulated by this process, or the `ModelWorkers` of a process group, whose
            ranks share the workers.
        split: How the weights of each layer are split: `columns`, `rows`, or `alternate` (columns, rows, columns ...).
        activations: The format of the activations that workers exchange.
        errors: The format of the errors (gradients of activations) that workers exchange.
        dropout: The probability of dropout after each hidden layer. All workers drop the same elements, which are drawn
            from torch's default generator.

    Raises:
        ValueError: The split is unknown, or an input does not have `in_features` values.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        width: int,
        depth: int,
        workers: int | ModelWorkers,
        split: str,
        activations: str,
        errors: str,
        dropout: float,
    ) -> None:
        super().__init__()
        if split not in (*SPLITS, "alternate"):
            raise ValueError(f"model.split={split}: choose one of {', '.join(SPLITS)}, alternate")
        self.workers = ModelWorkers(Workers(workers)) if isinstance(workers, int) else workers
        widths = [in_features, *[width] * depth, num_classes]
        self.layers = nn.ModuleList(
            ParallelLinear(
                widths[i],
                widths[i + 1],
                workers=self.workers,
                split=SPLITS[i % 2] if split == "alternate" else split,
                activations=activations,
                errors=errors,
            )
            for i in range(depth + 1)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if x.shape[1] != self.layers[0].in_features:
            raise ValueError(
                f"model.in_features must be {x.shape[1]} for this data, not {self.layers[0].in_features}"
            )
        for layer in self.layers[:-1]:
            x = self.dropout(F.relu(layer(x)))
        return self.layers[-1](x)
