"""AlexNet with batch norm, the network of the LARS paper.

You, Gitman and Ginsburg introduced LARS with this network (arXiv 1708.03888, section 5). The layers and sizes are those
of the one-tower AlexNet (Krizhevsky, arXiv 1404.5997) in torchvision. As in CPD, a batch norm after each convolution
replaces local response normalization. The features are pooled to 6x6 before the classifier, so the network accepts any
image of at least 63x63 pixels.
"""

from torch import Tensor, nn

POOLED = 6  # the height and width of the classifier's input


class AlexNet(nn.Module):
    """AlexNet with batch norm.

    The network takes images (B, in_channels, H, W) float32 with H and W >= 63 and returns logits (B, num_classes)
    float32. It has 61.1 M parameters for width=64, hidden=4096 and 1,000 classes.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        width: The number of channels of the first layer. The other layers have multiples of this number.
        hidden: The number of outputs of each of the two hidden fully connected layers.
        dropout: The probability of dropout before each hidden fully connected layer.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int, hidden: int, dropout: float):
        super().__init__()
        w = width
        self.features = nn.Sequential(
            _conv_norm_relu(in_channels, w, 11, stride=4, padding=2),
            nn.MaxPool2d(3, stride=2),
            _conv_norm_relu(w, 3 * w, 5, padding=2),
            nn.MaxPool2d(3, stride=2),
            _conv_norm_relu(3 * w, 6 * w, 3, padding=1),
            _conv_norm_relu(6 * w, 4 * w, 3, padding=1),
            _conv_norm_relu(4 * w, 4 * w, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            nn.AdaptiveAvgPool2d(POOLED),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(4 * w * POOLED**2, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        return self.classifier(self.features(x_BxCxHxW).flatten(1))


def _conv_norm_relu(
    in_channels: int, out_channels: int, size: int, *, stride: int = 1, padding: int
) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=padding)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))
