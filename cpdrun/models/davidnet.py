"""DavidNet, the 9-layer residual network of David Page's DAWNBench entry for CIFAR-10, which CPD trains.

The last pooling takes the maximum over all positions (4x4 for 32x32 images), so the network accepts any image of at
least 8x8 pixels.
"""

from torch import Tensor, nn


class DavidNet(nn.Module):
    """DavidNet.

    The network takes images (B, in_channels, H, W) float32 with H and W >= 8 and returns logits (B, num_classes)
    float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        width: The number of channels of the first convolution.
        logit_scale: The factor by which the logits are multiplied.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int, logit_scale: float):
        super().__init__()
        self.features = nn.Sequential(
            _conv_norm_relu(in_channels, width),
            _conv_norm_relu(width, 2 * width),
            nn.MaxPool2d(2),
            Residual(2 * width),
            _conv_norm_relu(2 * width, 4 * width),
            nn.MaxPool2d(2),
            _conv_norm_relu(4 * width, 8 * width),
            nn.MaxPool2d(2),
            Residual(8 * width),
        )
        self.classifier = nn.Linear(8 * width, num_classes, bias=False)
        self.logit_scale = logit_scale

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        pooled_BxC = self.features(x_BxCxHxW).amax(dim=(2, 3))
        return self.classifier(pooled_BxC) * self.logit_scale


class Residual(nn.Module):
    """The sum of the input and of two 3x3 convolutions of the input, each followed by batch norm and ReLU."""

    def __init__(self, channels: int):
        super().__init__()
        self.convs = nn.Sequential(_conv_norm_relu(channels, channels), _conv_norm_relu(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.convs(x)


def _conv_norm_relu(in_channels: int, out_channels: int) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))
