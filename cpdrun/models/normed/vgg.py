"""VGG-11 (Simonyan and Zisserman, arXiv 1409.1556, configuration A) with a choice of normalization layer.

The classifier is the small one of Aketi, Kodge and Roy (arXiv 2111.09389; github.com/aparna-aketi/Low_Precision_DL,
quantized_training/vgg.py): dropout, a linear layer with 512 outputs, a ReLU and a linear layer with one output for each
class.

Differences from that code: convolutions have a bias in every precision, whereas those of the authors' 8-bit network
have none. A mean over all positions replaces the 7x7 pooling, so the network accepts any image of at least 32x32
pixels.
"""

from collections.abc import Callable

from torch import Tensor, nn

from cpdrun.models.normed.norms import activated

LAYERS = (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool")  # channels, in units of the width


class NormedVGG11(nn.Module):
    """VGG-11 with a choice of normalization layer.

    The network takes images (B, in_channels, H, W) float32 with H and W >= 32 and returns logits (B, num_classes)
    float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        width: The number of channels of the first convolution, 64 in the paper.
        dropout: The probability of dropout before the classifier.
        norm: Makes a normalization layer for a number of channels.
    """

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
            if isinstance(layer, str):
                layers.append(nn.MaxPool2d(2))
                continue
            conv = nn.Conv2d(channels, layer * width, 3, padding=1)
            assert conv.bias is not None
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
