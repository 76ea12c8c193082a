"""MobileNetV2 (Sandler et al., arXiv 1801.04381, table 2) with a choice of normalization layer.

The network follows the code of Aketi, Kodge and Roy (arXiv 2111.09389; github.com/aparna-aketi/Low_Precision_DL,
quantized_training/mobilenetv2.py). As in that code:

- Every block of stride 1 has a shortcut. If the width changes, the shortcut is a 1x1 convolution with a norm.
- A norm that includes the activation (EvoNorm) also activates the narrow end of a block, which is linear in the paper.
- The activation is ReLU where the paper uses ReLU6.

A difference from that code: a mean over all positions replaces pooling of a fixed size.
"""

from collections.abc import Callable

from torch import Tensor, nn

from cpdrun.models.normed.norms import Sum, activated
from cpdrun.models.normed.resnet import STEMS

BLOCKS = (  # for each group of blocks: expansion factor, channels, number of blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
FIRST, HEAD = 32, 1280


class MobileNetV2(nn.Module):
    """MobileNetV2.

    The network takes images (B, in_channels, H, W) float32 and returns logits (B, num_classes) float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        stem: `imagenet` for 224x224 images, or `small` for 32x32 images. With `small`, the first convolution and the
            second group of blocks have stride 1.
        norm: Makes a normalization layer for a number of channels.

    Raises:
        ValueError: The stem is unknown.
    """

    def __init__(self, in_channels: int, num_classes: int, stem: str, norm: Callable[[int], nn.Module]):
        super().__init__()
        if stem not in STEMS:
            raise ValueError(f"model.stem must be one of {', '.join(STEMS)}, not {stem}")
        small = stem == "small"
        conv = nn.Conv2d(in_channels, FIRST, 3, stride=1 if small else 2, padding=1, bias=False)
        layers: list[nn.Module] = [conv, activated(norm(FIRST))]
        channels = FIRST
        for wider, out, count, stride in BLOCKS:
            for block in range(count):
                first = 1 if block or (small and out == 24) else stride
                layers.append(InvertedResidual(channels, wider * channels, out, first, norm))
                channels = out
        layers += [nn.Conv2d(channels, HEAD, 1, bias=False), activated(norm(HEAD))]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(HEAD, num_classes)

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        return self.classifier(self.features(x_BxCxHxW).mean(dim=(2, 3)))


class InvertedResidual(nn.Module):
    """A 1x1 convolution to more channels, a depthwise 3x3 convolution, and a 1x1 convolution to fewer channels.

    A block of stride 1 also has a shortcut.
    """

    def __init__(
        self, before: int, inside: int, channels: int, stride: int, norm: Callable[[int], nn.Module]
    ):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(before, inside, 1, bias=False),
            activated(norm(inside)),
            nn.Conv2d(inside, inside, 3, stride=stride, padding=1, groups=inside, bias=False),
            activated(norm(inside)),
            nn.Conv2d(inside, channels, 1, bias=False),
            norm(channels),
        )
        self.keeps_size, self.shortcut, self.sum = stride == 1, nn.Sequential(), Sum()
        if stride == 1 and before != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, bias=False), norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.branch(x)
        return self.sum(out, self.shortcut(x)) if self.keeps_size else out
