"""The CIFAR residual networks of He et al., "Deep Residual Learning" (arXiv 1512.03385), section 4.2.

A network of depth 6n+2 has three stages of n blocks. Shortcuts have no parameters: where the shape changes, they
subsample the positions and add channels of zeros (option A of the paper).
"""

import torch.nn.functional as F
from torch import Tensor, nn


class ResNetCifar(nn.Module):
    """A residual network of depth 6n+2 for small images.

    The network takes images (B, in_channels, H, W) float32 and returns logits (B, num_classes) float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        depth: The number of layers with weights on the main path.
        width: The number of channels of the first stage. Each further stage doubles the number.

    Raises:
        ValueError: The depth is not 6n+2.
    """

    def __init__(self, in_channels: int, num_classes: int, depth: int, width: int):
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"model.depth must be 6n+2 (8, 14, 20, 32, 44, 56, 110 ...), not {depth}")
        blocks_a_stage = (depth - 2) // 6
        self.stem = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(3):
            for block in range(blocks_a_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(BasicBlock(channels, width * 2**stage, stride))
                channels = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x_BxCxHxW)))
        return self.classifier(self.blocks(x).mean(dim=(2, 3)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters."""

    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.stride = stride
        self.extra_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.extra_channels:
            shortcut = F.pad(shortcut, (0, 0, 0, 0, 0, self.extra_channels))
        return F.relu(out + shortcut)
