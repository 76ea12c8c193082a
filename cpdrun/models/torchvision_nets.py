"""ResNet50 (arXiv 1512.03385) and FCN on ResNet50 (arXiv 1411.4038) of torchvision, returning logits only.

The initial weights are random. Nothing is downloaded. Use init_from=PATH to load trained weights.
"""

from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models.segmentation import fcn_resnet50

from cpdrun.models.auxiliary import WithAuxiliary


class ResNet50(nn.Module):
    """ResNet50 of torchvision.

    The network takes RGB images (B, 3, H, W) float32 and returns logits (B, num_classes) float32.

    Args:
        num_classes: The number of classes.
        zero_init_residual: Whether the last norm of each block starts with weight 0.
    """

    def __init__(self, num_classes: int, zero_init_residual: bool):
        super().__init__()
        self.net = resnet50(weights=None, num_classes=num_classes, zero_init_residual=zero_init_residual)

    def forward(self, x_Bx3xHxW: Tensor) -> Tensor:
        return self.net(x_Bx3xHxW)


class FcnResNet50(nn.Module):
    """FCN on ResNet50 of torchvision, for segmentation.

    The network takes RGB images (B, 3, H, W) float32 and returns logits (B, num_classes, H, W) float32. During training
    with an `auxiliary_weight` above 0, it returns `WithAuxiliary`, with the logits of a second head on the last stage
    but one.

    Args:
        num_classes: The number of classes.
        auxiliary_weight: The weight of the auxiliary loss. With 0, there is no auxiliary head.

    Raises:
        ValueError: The weight is negative.
    """

    def __init__(self, num_classes: int, auxiliary_weight: float):
        super().__init__()
        if auxiliary_weight < 0:
            raise ValueError(f"model.auxiliary_weight must be at least 0, not {auxiliary_weight}")
        self.auxiliary_weight = auxiliary_weight
        self.net = fcn_resnet50(
            weights=None, weights_backbone=None, num_classes=num_classes, aux_loss=auxiliary_weight > 0
        )

    def forward(self, x_Bx3xHxW: Tensor) -> Tensor | WithAuxiliary:
        outputs = self.net(x_Bx3xHxW)
        if self.training and "aux" in outputs:
            return WithAuxiliary(outputs["out"], outputs["aux"], self.auxiliary_weight)
        return outputs["out"]
