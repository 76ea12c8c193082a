"""A fully convolutional network for small images.

The network follows the idea of Long, Shelhamer and Darrell (arXiv 1411.4038) at a size that trains on one CPU core.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class FcnSmall(nn.Module):
    """A small fully convolutional network for segmentation.

    The network takes images (B, in_channels, H, W) float32 and returns logits (B, num_classes, H, W) float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        width: The number of channels of the first convolution. The other two convolutions have twice as many.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int):
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for out_channels, stride in ((width, 2), (2 * width, 2), (2 * width, 1)):
            conv = nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)]
            channels = out_channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Conv2d(channels, num_classes, 1)

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        coarse = self.classifier(self.features(x_BxCxHxW))
        return F.interpolate(coarse, size=x_BxCxHxW.shape[2:], mode="bilinear", align_corners=False)
