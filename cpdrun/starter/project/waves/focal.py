"""A custom task: classification with the focal loss and the balanced accuracy.

The focal loss gives hard samples more weight (Lin et al., arXiv 1708.02002, equation 4). The balanced accuracy is the
mean of the accuracies of the classes.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from cpdrun.record.measure import SHARE
from cpdrun.tasks.classification import Classification
from cpdrun.tasks.segmentation import confusion


class Focal(Classification):
    """Classification with the focal loss.

    Args:
        num_classes: The number of classes.
        gamma: The focusing parameter. With 0, the loss is the cross-entropy. With larger values, samples that are
            already classified correctly have less weight.
    """

    measures = Classification.measures | {"balanced_accuracy": SHARE}
    judged_by = "balanced_accuracy"
    num_classes: int

    def __init__(self, num_classes: int, gamma: float):
        super().__init__(num_classes)
        self.gamma = gamma

    def loss(self, outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean focal loss of a batch, a scalar."""
        minus_log_p_B = F.cross_entropy(outputs, batch[1], reduction="none")
        return ((1 - torch.exp(-minus_log_p_B)) ** self.gamma * minus_log_p_B).mean()

    def sums(self, outputs: Tensor, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Return the sums over a batch from which `metrics` computes the metrics, including the confusion matrix."""
        counts_KxK = confusion(outputs.argmax(dim=1), batch[1], self.num_classes)
        return super().sums(outputs, batch) | {"counts": counts_KxK}

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the metrics, given the totals of `sums` over the test set."""
        right_K = totals["counts"].diagonal() / totals["counts"].sum(dim=1)
        return super().metrics(totals) | {"balanced_accuracy": right_K.mean().item()}
