"""A convolutional network over M workers, with data-parallel convolutions and model-parallel fully connected layers.

The design is that of Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (arXiv:1404.5997,
section 3), which Dettmers also uses in "8-Bit Approximations for Parallelism in Deep Learning" (arXiv:1511.04561).
Convolutions have few weights and many activations, and fully connected layers have many weights and few activations. So
each worker holds all convolutions and computes them for its share of the batch. Then each worker sends its features to
all others. The fully connected layers are split over the workers (`cpdrun.comm.model_parallel`) and see the whole
batch:

    forward    f_m = convolutions(x_m)
               f = gather(f_m) over the samples, in the format `activations`
               fully connected layers, split over the workers
    backward   df = sum over the workers, in the format `errors`, computed by the first split layer
               df_m = the rows of df that belong to the samples of worker m
               dW = sum of dW_m over the workers, in the format `gradients`

A difference from both papers: exchanges are not overlapped with computation, because this does not change the bits.
There are no normalization layers, as in both papers, because their statistics would cover only a share of the batch.

Shapes: B samples, M workers, F features where the two parts of the network meet.
"""

from custom_fp.formats.names import parse
from torch import Tensor, nn
from torch.func import functional_call

from cpdrun.comm.model_parallel import GatherBatch, ModelWorkers, ReplicatedWeight
from cpdrun.comm.workers import Workers
from cpdrun.models.parallel.mlp import ParallelMLP

POOLED = 4  # the height and width of the feature maps that enter the fully connected layers


class ParallelConvNet(nn.Module):
    """A network of two data-parallel convolutions and model-parallel fully connected layers.

    The network takes images (B, in_channels, H, W) float32 with H and W >= 8 and returns logits (B, num_classes)
    float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        width: The number of channels of the first convolution. The second has twice as many.
        hidden: The number of outputs of each hidden fully connected layer.
        depth: The number of hidden fully connected layers.
        dropout: The probability of dropout after each hidden fully connected layer.
        workers: The workers, as in `ParallelMLP`.
        split: How the weights are split, as in `ParallelMLP`.
        activations: The format of the activations that workers exchange.
        errors: The format of the errors (gradients of activations) that workers exchange.
        gradients: The format of the weight gradients of the convolutions.
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
