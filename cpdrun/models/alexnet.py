"""AlexNet with batch norm, the network on which LARS was shown (You, Gitman and Ginsburg, arXiv 1708.03888, section 5).

Layers and sizes are those of the one-tower AlexNet (Krizhevsky, arXiv 1404.5997) as torchvision has it, with a batch
norm after each convolution in place of local response normalisation, as CPD trains it. In front of the classifier the
features are pooled to 6x6, so that any image from 63x63 does.
"""

from torch import Tensor, nn

POOLED = 6  # the side of what the classifier reads


class AlexNet(nn.Module):
    """Images (B, in_channels, H, W) float32, H and W >= 63 -> logits (B, num_classes) float32.

    width: channels of the first layer; hidden: of both fully connected ones; 61.1 M parameters at 64, 4096 and 1,000
    classes.
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
