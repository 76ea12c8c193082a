"""Classification that also counts an answer as correct if the class is among the five most likely.

The metric is meant for data with many similar classes (Krizhevsky et al. 2012, ImageNet).
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cpdrun.data.base import Batch
from cpdrun.record.measure import ACCURACY
from cpdrun.tasks.classification import Classification


class Top5(Classification):
    """Classification with top-5 accuracy. With fewer than five classes, all answers are correct."""

    measures = Classification.measures | {"top5_accuracy": ACCURACY}

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        logits, y = self.compared(outputs, batch)
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        return super().sums(outputs, batch) | {"in_top5": (best == y.unsqueeze(1)).sum()}

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        top5 = totals["in_top5"].item() / max(totals["seen"].item(), 1)
        return super().metrics(totals) | {"top5_accuracy": top5}
