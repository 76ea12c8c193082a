"""Classification where a sample has many classes near its own: right is also what is among the five likeliest
(Krizhevsky et al. 2012, ImageNet)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cpdrun.data.base import Batch
from cpdrun.record.measure import ACCURACY
from cpdrun.tasks.classification import Classification


class Top5(Classification):
    """With fewer than five classes, all of them count."""

    measures = Classification.measures | {"top5_accuracy": ACCURACY}

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        logits, y = self.compared(outputs, batch)
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        return super().sums(outputs, batch) | {"in_top5": (best == y.unsqueeze(1)).sum()}

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        top5 = totals["in_top5"].item() / max(totals["seen"].item(), 1)
        return super().metrics(totals) | {"top5_accuracy": top5}
