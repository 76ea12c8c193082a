"""A custom model: two convolutions over time, followed by a mean over time and a linear layer."""

from torch import Tensor, nn


class Conv1d(nn.Module):
    """A convolutional classifier of signals.

    The input has shape (B, in_channels, L), the logits have shape (B, num_classes), and both are float32.

    Args:
        in_channels: The number of channels of a signal. cpdrun passes the dataset's attribute of this name.
        num_classes: The number of classes. cpdrun passes the dataset's attribute of this name.
        width: The number of channels after the first convolution. It is set in conf/model/conv1d.yaml.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(in_channels, width, kernel_size=5, stride=2),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, kernel_size=5, stride=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, x_BxCxL: Tensor) -> Tensor:
        """Return the logits of a batch of signals."""
        return self.head(self.features(x_BxCxL).mean(dim=2))
