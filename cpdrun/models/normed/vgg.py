"""VGG-11 (Simonyan and Zisserman, arXiv 1409.1556, configuration A) with a normalisation of one's choice and the small
classifier of Aketi, Kodge and Roy (arXiv 2111.09389; github.com/aparna-aketi/Low_Precision_DL,
quantized_training/vgg.py): dropout, 512 values, a ReLU, the classes.

What differs from their code: convolutions have a bias in every precision, theirs of 8 bits have none, and the mean over
all positions stands in for a pooling of 7x7, so that any image size from 32 does.
"""

from collections.abc import Callable

from torch import Tensor, nn

from cpdrun.models.normed.norms import activated

LAYERS = (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool")  # in units of the width


class NormedVGG11(nn.Module):
    """Images (B, in_channels, H, W) float32, H, W >= 32 -> logits (B, num_classes) float32."""

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        width: int,
        dropout: float,
        norm: Callable[[int], nn.Module],
    ):
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for layer in LAYERS:
            if layer == "pool":
                layers.append(nn.MaxPool2d(2))
                continue
            conv = nn.Conv2d(channels, layer * width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(conv.bias)
            layers += [conv, activated(norm(layer * width))]
            channels = layer * width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, num_classes)
        )

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        return self.classifier(self.features(x_BxCxHxW).mean(dim=(2, 3)))
