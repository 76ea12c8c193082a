"""Residual networks with a choice of normalization layer.

The networks follow Aketi, Kodge and Roy (arXiv 2111.09389; github.com/aparna-aketi/Low_Precision_DL,
quantized_training/resnet.py and resnet_quantized.py). ResNet-20 for 32x32 images has stages [3, 3, 3] of width 16 after
a 3x3 convolution. ResNet-18 for 224x224 images has stages [2, 2, 2, 2] of width 64 after a 7x7 convolution of stride 2
and a pooling.

Differences from He et al. (arXiv 1512.03385): where the shape changes, the shortcut is a 1x1 convolution with a norm.
If the norm includes the activation (EvoNorm), no ReLU follows the norm or the sum of a block.

A difference from the code of Aketi et al.: it has two networks that are initialized differently, one for each
precision. Here, one network serves every precision, and `zero_init` chooses the initialization.
"""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from cpdrun.models.normed.norms import Sum, activated, activates

STEMS = ("small", "imagenet")


class NormedResNet(nn.Module):
    """A residual network with a choice of normalization layer.

    The network takes images (B, in_channels, H, W) float32 and returns logits (B, num_classes) float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        stages: The number of blocks of each stage.
        width: The number of channels of the first stage. Each further stage doubles the number.
        stem: `small`, a 3x3 convolution, or `imagenet`, a 7x7 convolution of stride 2 and a pooling.
        zero_init: Whether the last norm of each block starts with weight 0, and the classifier with weights of standard
            deviation 0.01 and bias 0. The authors' 8-bit network does, their float network does not.
        norm: Makes a normalization layer for a number of channels.

    Raises:
        ValueError: The stem is unknown, or `stages` is not a list of integers above 0.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        stages: Sequence[int],
        width: int,
        stem: str,
        zero_init: bool,
        norm: Callable[[int], nn.Module],
    ):
        super().__init__()
        if stem not in STEMS:
            raise ValueError(f"model.stem must be one of {', '.join(STEMS)}, not {stem}")
        if not stages or not all(isinstance(n, int) and n >= 1 for n in stages):
            raise ValueError(
                f"model.stages must be the number of blocks of each stage, such as [3,3,3], not {stages}"
            )
        kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
        conv = nn.Conv2d(in_channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
        pool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.stem = nn.Sequential(conv, activated(norm(width)), pool)
        blocks: list[NormedBlock] = []
        channels = width
        for stage, count in enumerate(stages):
            for block in range(count):
                stride = 2 if stage and not block else 1
                blocks.append(NormedBlock(channels, width * 2**stage, stride, norm))
                channels = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if zero_init:
            for normed_block in blocks:
                nn.init.zeros_(normed_block.norm2.get_parameter("weight"))
            nn.init.normal_(self.classifier.weight, std=0.01)
            nn.init.zeros_(self.classifier.bias)

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        return self.classifier(self.blocks(self.stem(x_BxCxHxW)).mean(dim=(2, 3)))


class NormedBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, before: int, channels: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = activated(norm(channels))
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != channels:
            conv = nn.Conv2d(before, channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, norm(channels))
        self.sum = Sum()

    def forward(self, x: Tensor) -> Tensor:
        out = self.sum(self.shortcut(x), self.norm2(self.conv2(self.norm1(self.conv1(x)))))
        return out if activates(self.norm2) else F.relu(out)
