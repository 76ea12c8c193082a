"""torchvision's ResNet50 (arXiv 1512.03385) and FCN on ResNet50 (arXiv 1411.4038), returning logits alone.

Weights start at random: nothing is fetched. FCN is without its auxiliary head.
"""

from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models.segmentation import fcn_resnet50


class ResNet50(nn.Module):
    """RGB images (B, 3, H, W) float32 -> logits (B, num_classes) float32."""

    def __init__(self, num_classes: int, zero_init_residual: bool):
        super().__init__()
        self.net = resnet50(weights=None, num_classes=num_classes, zero_init_residual=zero_init_residual)

    def forward(self, x_Bx3xHxW: Tensor) -> Tensor:
        return self.net(x_Bx3xHxW)


class FcnResNet50(nn.Module):
    """RGB images (B, 3, H, W) float32 -> logits (B, num_classes, H, W) float32."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.net = fcn_resnet50(weights=None, weights_backbone=None, num_classes=num_classes)

    def forward(self, x_Bx3xHxW: Tensor) -> Tensor:
        return self.net(x_Bx3xHxW)["out"]
