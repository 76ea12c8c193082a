"""The network of `cpdrun.models.convnet` with a choice of normalization layer."""

from collections.abc import Callable

from torch import Tensor, nn

from cpdrun.models.normed.norms import activated


class NormedConvNet(nn.Module):
    """A network of three 3x3 convolutions, mean pooling and a linear classifier.

    The network takes images (B, in_channels, H, W) float32 with H and W >= 4 and returns logits (B, num_classes)
    float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        width: The number of channels of the first convolution. Each further convolution doubles the number.
        stride: The stride of the first convolution.
        norm: Makes a normalization layer for a number of channels. No ReLU follows a layer that `activates`.
    """

    def __init__(
        self, in_channels: int, num_classes: int, width: int, stride: int, norm: Callable[[int], nn.Module]
    ):
        super().__init__()
        layers: list[nn.Module] = []
        before = in_channels
        for i, channels in enumerate((width, 2 * width, 4 * width)):
            conv = nn.Conv2d(before, channels, 3, stride=2 if i else stride, padding=1, bias=False)
            layers += [conv, activated(norm(channels))]
            before = channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(4 * width, num_classes)

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        return self.classifier(self.features(x_BxCxHxW).mean(dim=(2, 3)))
