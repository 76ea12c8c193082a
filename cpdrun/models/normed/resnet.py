"""Residual networks with a normalisation of one's choice, as Aketi, Kodge and Roy train them (arXiv 2111.09389 and
github.com/aparna-aketi/Low_Precision_DL, quantized_training/resnet.py and resnet_quantized.py).

ResNet-20 for 32x32 images is stages [3, 3, 3] of width 16 behind a 3x3 convolution; ResNet-18 for 224x224 is
[2, 2, 2, 2] of width 64 behind a 7x7 convolution of stride 2 and a pooling. Against He et al. (arXiv 1512.03385):
shortcuts are 1x1 convolutions with a norm where the shape changes, and where the norm holds the activation (EvoNorm)
no ReLU follows it, nor the sum of a block. What differs from their code: one network for every precision, where theirs
has two that begin differently (zero_init and what it says).
"""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from cpdrun.models.normed.norms import Sum, activated, activates

STEMS = ("small", "imagenet")


class NormedResNet(nn.Module):
    """Images (B, in_channels, H, W) float32 -> logits (B, num_classes) float32.

    zero_init: the last norm of each block begins with weight 0 and the classifier with weights of deviation .01 and
    bias 0, as the 8-bit network of the authors does, the float one not.

    Raises ValueError for an unknown stem and for stages that are no list of whole numbers above 0.
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
            raise ValueError(f"model.stages must be blocks a stage, such as [3,3,3], not {stages}")
        kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
        conv = nn.Conv2d(in_channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
        pool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.stem = nn.Sequential(conv, activated(norm(width)), pool)
        blocks, channels = [], width
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
            for block in blocks:
                nn.init.zeros_(block.norm2.weight)
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
