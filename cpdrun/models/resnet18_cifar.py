"""ResNet18 for 32x32 images: the network of kuangliu's pytorch-cifar, which CPD trains on CIFAR-10.

The 18 layers of He et al. (arXiv 1512.03385, table 1) with a 3x3 stem of stride 1 and no first pooling. Differs
from pytorch-cifar in the last pooling: a mean over all positions, so that any image size does.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class ResNet18Cifar(nn.Module):
    """Images (B, in_channels, H, W) float32 -> logits (B, num_classes) float32; 11.2 M parameters at width 64."""

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
    """Two 3x3 convolutions; the shortcut is a 1x1 convolution where the shape changes (option B)."""

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
