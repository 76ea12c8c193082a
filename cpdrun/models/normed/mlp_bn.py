"""A perceptron with batch norm, a cheap network with both linear and normalization layers."""

from itertools import pairwise

from torch import Tensor, nn


class MLPBatchNorm(nn.Module):
    """A perceptron of fully connected layers with batch norm.

    The network takes inputs (B, ...) float32 of `in_features` values each and returns logits (B, num_classes) float32.

    Args:
        in_features: The number of values of an input.
        num_classes: The number of classes.
        width: The number of outputs of each hidden layer.
        depth: The number of hidden layers.
    """

    def __init__(self, in_features: int, num_classes: int, width: int, depth: int):
        super().__init__()
        widths = [in_features, *[width] * depth]
        self.features = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(n_in, n_out, bias=False), nn.BatchNorm1d(n_out), nn.ReLU())
                for n_in, n_out in pairwise(widths)
            )
        )
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x.flatten(1)))
