"""Classification of samples, or of each element of a sample, with cross-entropy and accuracy.

Shapes: B samples, K classes. Logits are (B, K, ...) and targets are int64 (B, ...). Elements whose target is IGNORED do
not count.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpdrun.data.base import Batch, targets_of
from cpdrun.models.auxiliary import WithAuxiliary
from cpdrun.record.measure import ACCURACY, NATS, Measure
from cpdrun.tasks.base import Task, described, prediction_of

IGNORED = -100
MEASURES: dict[str, Measure] = {"loss": NATS, "accuracy": ACCURACY}


def cross_entropy(logits: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Return the cross-entropy of logits (B, K, ...) and targets (B, ...), summed in a fixed order on any device.

    If a sample has several targets, PyTorch sums their losses on a GPU with atomic additions, whose order varies. On a
    GPU, this function therefore treats every target as a separate sample.
    """
    if logits.is_cuda and logits.dim() > 2:
        logits, y = logits.movedim(1, -1).flatten(0, -2), y.flatten()
    return F.cross_entropy(logits, y, **options)


class Classification(Task):
    """Classification into K classes.

    Args:
        num_classes: The number of classes K. With None, it is not checked.
        label_smoothing: The fraction of each target that is spread evenly over all classes, in training only.
    """

    measures: dict[str, Measure] = MEASURES
    judged_by = "accuracy"

    def __init__(self, num_classes: int | None = None, label_smoothing: float = 0.0):
        self.num_classes, self.label_smoothing = num_classes, label_smoothing
        self._heads = 1.0  # the weight of the main head, 1, plus the weight of the auxiliary head

    def compared(self, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits (B, K, ...) and the targets (B, ...) that the loss compares."""
        return prediction_of(outputs), targets_of(batch)

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the cross-entropy, plus that of the auxiliary head if the model has one."""
        logits, y = self.compared(outputs, batch)
        loss = cross_entropy(logits, y, label_smoothing=self.label_smoothing)
        if not isinstance(outputs, WithAuxiliary):
            return loss
        self._heads = 1.0 + outputs.weight
        auxiliary = cross_entropy(outputs.auxiliary, y, label_smoothing=self.label_smoothing)
        return loss + outputs.weight * auxiliary

    def loss_range(self) -> tuple[float, float] | None:
        """Return the loss of a correct model and of a model that guesses among K classes.

        A guess costs ln K, with or without label smoothing. A correct answer costs the entropy of a smoothed label.
        Both are multiplied by the total weight of the heads in the latest call of `loss`. The range is not known for a
        subclass that overrides the loss. Such a class can override this method.
        """
        own = type(self)
        if own.loss is not Classification.loss or own.loss_of is not Task.loss_of or not self.num_classes:
            return None
        K, spread = self.num_classes, self.label_smoothing / self.num_classes
        of_label = [1 - self.label_smoothing + spread, *[spread] * (K - 1)]
        right = -math.fsum(p * math.log(p) for p in of_label if p > 0)
        return self._heads * right, self._heads * math.log(K)

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        logits, y = self.compared(outputs, batch)
        return {
            "loss": cross_entropy(logits, y, reduction="sum", ignore_index=IGNORED),
            "seen": (y != IGNORED).sum(),
            "correct": (logits.argmax(dim=1) == y).sum(),
        }

    def example_outcomes(self, outputs: Any, batch: Batch) -> Tensor | None:
        if self.judged_by != "accuracy":
            return None
        logits, y = self.compared(outputs, batch)
        if not (isinstance(y, Tensor) and y.dtype == torch.int64 and y.dim() == 1):
            return None
        return torch.stack([y, (logits.argmax(dim=1) == y).long()], dim=1)

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        seen = max(totals["seen"].item(), 1)
        return {"loss": totals["loss"].item() / seen, "accuracy": totals["correct"].item() / seen}

    def unfit_targets(self, batch: Batch) -> str | None:
        y = targets_of(batch)
        if isinstance(y, Tensor) and y.dtype == torch.int64:
            return None
        return (
            f"are {described(y)}; the loss is cross-entropy over classes, which needs int64 class numbers that "
            "start at 0 (to learn numbers, use task=regression)"
        )

    def unfit_outputs(self, outputs: Any, batch: Batch) -> str | None:
        logits = prediction_of(outputs)
        if not isinstance(logits, Tensor) or logits.dim() < 2:
            return (
                f"gives {described(logits)}; the loss takes one tensor (samples, classes, ...), or an output that "
                "has such a tensor as `logits`"
            )
        logits, y = self.compared(outputs, batch)
        K = logits.shape[1]
        if K < 2 and isinstance(y, Tensor) and logits.dim() > y.dim() + 1:
            return f"gives {described(logits)} for targets {described(y)}: dimension 1 must be the classes"
        if K < 2:
            return (
                "has one output, for which the cross-entropy is always 0: it needs one output for each class"
            )
        if self.num_classes not in (None, K):
            return (
                f"has {K} outputs for the {self.num_classes} classes of the data; add an argument num_classes to "
                f"its class, or set the argument to {self.num_classes}"
            )
        try:
            F.cross_entropy(logits.float(), y)
        except (RuntimeError, ValueError, IndexError) as error:
            return f"gives {described(logits)} for targets {described(y)}: {str(error).splitlines()[0]}"
        return None
