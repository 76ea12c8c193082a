"""A small convolutional network for small images: three 3x3 convolutions with batch norm, then mean pooling."""

from torch import Tensor, nn


class ConvNet(nn.Module):
    """A network of three convolutions and a linear classifier.

    The network takes images (B, in_channels, H, W) float32 with H and W >= 4 and returns logits (B, num_classes)
    float32.

    Args:
        in_channels: The number of channels of the images.
        num_classes: The number of classes.
        width: The number of channels of the first convolution. Each further convolution doubles the number.
        dropout: The probability of dropout before the classifier.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int, dropout: float):
        super().__init__()
        self.features = nn.Sequential(
            _conv_norm_relu(in_channels, width, stride=1),
            _conv_norm_relu(width, 2 * width, stride=2),
            _conv_norm_relu(2 * width, 4 * width, stride=2),
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(4 * width, num_classes)

    def forward(self, x_BxCxHxW: Tensor) -> Tensor:
        pooled_BxC = self.features(x_BxCxHxW).mean(dim=(2, 3))
        return self.classifier(self.dropout(pooled_BxC))


def _conv_norm_relu(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))
