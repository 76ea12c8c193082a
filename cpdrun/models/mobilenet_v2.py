"""MobileNetV2 (Sandler et al., arXiv 1801.04381, table 2) with a normalisation of one's choice, as Aketi, Kodge and Roy
train it (arXiv 2111.09389; github.com/aparna-aketi/Low_Precision_DL, quantized_training/mobilenetv2.py).

As in their code, a block of stride 1 has a shortcut always, a 1x1 convolution with a norm where its width changes; a
norm that holds the activation (EvoNorm) activates the narrow end of a block too, which the paper leaves linear; and
ReLU stands where the paper has ReLU6. The mean over all positions stands in for their pooling of fixed size.
"""

from collections.abc import Callable

from torch import Tensor, nn

from cpdrun.models.normed.norms import Sum, activated
from cpdrun.models.normed.resnet import STEMS

BLOCKS = (  # how much wider inside, channels, how many, stride of the first
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
    """Images (B, in_channels, H, W) float32 -> logits (B, num_classes) float32.

    stem small: the first convolution and the second group of blocks keep the size, for 32x32 in place of 224x224.
    Raises ValueError for an unknown stem.
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
    """1x1 to more channels, 3x3 for each of them, 1x1 to few; a shortcut where the size stays."""

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
