"""Segmentation: a class for every pixel, judged by mean intersection over union (Everingham et al. 2010, PASCAL VOC).

Shapes: B images, K classes. Logits are (B, K, H, W) and targets are int64 (B, H, W).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cpdrun.data.base import Batch
from cpdrun.record.measure import SHARE
from cpdrun.tasks.classification import IGNORED, Classification


class Segmentation(Classification):
    """Segmentation.

    `mean_iou` is the mean over the classes that occur in the targets or in the predictions.

    Args:
        num_classes: The number of classes K.
        label_smoothing: The fraction of each target that is spread evenly over all classes, in training only.
    """

    measures = Classification.measures | {"mean_iou": SHARE}
    judged_by = "mean_iou"
    num_classes: int

    def __init__(self, num_classes: int, label_smoothing: float = 0.0):
        super().__init__(num_classes, label_smoothing)

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        logits, y = self.compared(outputs, batch)
        return super().sums(outputs, batch) | {
            "confusion": confusion(logits.argmax(dim=1), y, self.num_classes)
        }

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        return super().metrics(totals) | {"mean_iou": mean_iou(totals["confusion"])}


def confusion(predicted: Tensor, y: Tensor, K: int) -> Tensor:
    """Return the confusion matrix, (K, K) int64.

    Element [i, j] is the number of elements of class i whose prediction is class j.
    """
    counted = y != IGNORED
    return torch.bincount(y[counted] * K + predicted[counted], minlength=K * K).view(K, K)


def mean_iou(confusion_KxK: Tensor) -> float:
    """Return the intersection over union, averaged over the classes that occur in the targets or in the predictions."""
    confusion_KxK = confusion_KxK.double()
    hits = confusion_KxK.diagonal()
    union = confusion_KxK.sum(0) + confusion_KxK.sum(1) - hits
    return (hits[union > 0] / union[union > 0]).mean().item()
