"""Two convolutions over time and a mean. cpdrun gives in_channels and num_classes, the yaml the rest."""

from torch import Tensor, nn


class Conv1d(nn.Module):
    """Signals (B, in_channels, L) float32 -> logits (B, num_classes) float32."""

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
        return self.head(self.features(x_BxCxL).mean(dim=2))
