"""A perceptron whose layers are split over workers."""

import torch.nn.functional as F
from torch import Tensor, nn

from cpdrun.comm.model_parallel import SPLITS, ModelWorkers, ParallelLinear
from cpdrun.comm.workers import Workers


class ParallelMLP(nn.Module):
    """A perceptron of ParallelLinear layers: inputs (B, ...) of `in_features` values -> logits (B, num_classes).

    split: columns, rows, or alternate (columns, rows, columns ...). workers: their number, all played by this process;
    or the `ModelWorkers` of a process group, whose ranks share them. dropout: after every layer but the last; all
    workers drop the same elements, which they draw from torch's generator.
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
            raise ValueError(f"model.in_features must be {x.shape[1]} for this data")
        for layer in self.layers[:-1]:
            x = self.dropout(F.relu(layer(x)))
        return self.layers[-1](x)
