"""ResNet18 for 32x32 images, the network of kuangliu's pytorch-cifar that CPD trains on CIFAR-10.

The network has the 18 layers of He et al. (arXiv 1512.03385, table 1), with a 3x3 stem of stride 1 and no first
pooling. A difference from pytorch-cifar: the last pooling is a mean over all positions, so the network accepts any
image size.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class ResNet18Cifar(nn.Module):
    """ResNet18 for small images.

    The network takes images (B, in_channels, H, W) float32 and returns logits (B, num_classes) float32. It has 11.2 M
    parameters for width=64.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        width: The number of channels of the first stage. Each further stage doubles the number.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int):
        super().__init__()
        self.stem = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, channels = [], width
        for stage in range(4):
            for stride in (1 if stage == 0 else 2, 1):
                blocks.append(ProjectingBlock(channels, width * 2**stage, stride))
                channels = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x_BxCxHxW)))
        return self.classifier(self.blocks(x).mean(dim=(2, 3)))


class ProjectingBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes (option B of the paper)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))
