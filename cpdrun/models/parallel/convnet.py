"""A convolutional network over M workers: convolutions by data, fully connected layers by model.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (arXiv:1404.5997, section 3), the setting
of Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (arXiv:1511.04561): convolutions have few weights
and many activations, fully connected layers the reverse. So each worker holds all convolutions and computes them for
its share of the batch; at the seam its features travel to all others, and from there on the layers are split
(`comm/parallel/linear.py`) and see the whole batch:

    forward    f_m = convolutions of x_m;  f = gather(f_m) over samples, in `activations`;  split layers of f
    backward   df = sum over workers, in `errors`, by the first split layer; each takes its samples' rows df_m
               dW  = sum over workers of its dW_m, in `gradients`

What differs from both papers: there is no schedule in which exchanges hide behind computation, for bits do not depend
on it, and norms, which neither has, are left out: their statistics would be of a share of the batch.

Legend: B samples, M workers, F features at the seam.
"""

from custom_fp.formats.names import parse
from torch import Tensor, nn
from torch.func import functional_call

from cpdrun.comm.model_parallel import GatherBatch, ModelWorkers, ReplicatedWeight
from cpdrun.comm.workers import Workers
from cpdrun.models.parallel.mlp import ParallelMLP

POOLED = 4  # the side of the features at the seam


class ParallelConvNet(nn.Module):
    """Images (B, in_channels, H, W) float32, H and W >= 8 -> logits (B, num_classes) float32.

    width: channels of the first of two convolutions, doubled at the second; hidden, depth: outputs and number of the
    fully connected layers before the last one; dropout: after each of these. workers, split: as ParallelMLP has them.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        width: int,
        hidden: int,
        depth: int,
        dropout: float,
        workers: int | ModelWorkers,
        split: str,
        activations: str,
        errors: str,
        gradients: str,
    ) -> None:
        super().__init__()
        self.workers = ModelWorkers(Workers(workers)) if isinstance(workers, int) else workers
        self.activations, self.gradients = parse(activations), parse(gradients)
        self.convolutions = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(POOLED),
            nn.Flatten(),
        )
        features = 2 * width * POOLED**2
        self.classifier = ParallelMLP(
            features, num_classes, hidden, depth, self.workers, split, activations, errors, dropout
        )

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        if self.workers.number == 1:
            return self.classifier(self.convolutions(x_BxCxHxW))
        names, weights = zip(*self.convolutions.named_parameters(), strict=True)
        mine = len(self.workers.local)
        copies = [ReplicatedWeight.apply(self.workers, self.gradients, mine, weight) for weight in weights]
        shares = self.workers.slices(len(x_BxCxHxW))
        features = [
            functional_call(
                self.convolutions,
                {name: copy[i] for name, copy in zip(names, copies, strict=True)},
                (x_BxCxHxW[shares[m]],),
            )
            for i, m in enumerate(self.workers.local)
        ]
        return self.classifier(GatherBatch.apply(self.workers, self.activations, len(x_BxCxHxW), *features))
