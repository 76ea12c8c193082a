"""One class for each sample, or for each of its elements: cross-entropy, judged by how many are right.

Legend: B samples, K classes. Logits are (B, K, ...), targets int64 (B, ...), where IGNORED counts for nothing.
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


class Classification(Task):
    """label_smoothing: share of each target spread over all classes, in training alone."""

    measures: Mapping[str, Measure] = {"loss": NATS, "accuracy": ACCURACY}
    judged_by = "accuracy"

    def __init__(self, num_classes: int | None = None, label_smoothing: float = 0.0):
        self.num_classes, self.label_smoothing = num_classes, label_smoothing
        self._heads = 1.0  # that of the model and of auxiliary ones, by their weight

    def compared(self, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (B, K, ...) and their targets (B, ...)."""
        return prediction_of(outputs), targets_of(batch)

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """With that of auxiliary heads, where the model has some."""
        logits, y = self.compared(outputs, batch)
        loss = F.cross_entropy(logits, y, label_smoothing=self.label_smoothing)
        if not isinstance(outputs, WithAuxiliary):
            return loss
        self._heads = 1.0 + outputs.weight
        auxiliary = F.cross_entropy(outputs.auxiliary, y, label_smoothing=self.label_smoothing)
        return loss + outputs.weight * auxiliary

    def loss_range(self) -> tuple[float, float] | None:
        """A guess among K classes costs ln K, smoothed labels or not; a right answer the entropy of a smoothed label.
        Of heads as the latest `loss` had them. Not of a subclass with a loss of its own, which can say it itself."""
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
            "loss": F.cross_entropy(logits, y, reduction="sum", ignore_index=IGNORED),
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
            f"are {described(y)}; the loss is cross-entropy over classes, which takes int64 class numbers from 0 "
            "(task=regression learns numbers)"
        )

    def unfit_outputs(self, outputs: Any, batch: Batch) -> str | None:
        logits = prediction_of(outputs)
        if not isinstance(logits, Tensor) or logits.dim() < 2:
            return f"gives {described(logits)}; the loss takes one tensor (samples, classes, ...), or its `logits`"
        logits, y = self.compared(outputs, batch)
        K = logits.shape[1]
        if K < 2 and isinstance(y, Tensor) and logits.dim() > y.dim() + 1:
            return (
                f"gives {described(logits)} for targets {described(y)}: classes are counted along dimension 1"
            )
        if K < 2:
            return "has one output, of which every cross-entropy is 0: it needs one for each class"
        if self.num_classes not in (None, K):
            return (
                f"has {K} outputs for the {self.num_classes} classes of the data; give its class an argument "
                f"num_classes, or set the one it has to {self.num_classes}"
            )
        try:
            F.cross_entropy(logits.float(), y)
        except (RuntimeError, ValueError, IndexError) as error:
            return f"gives {described(logits)} for targets {described(y)}: {str(error).splitlines()[0]}"
        return None
