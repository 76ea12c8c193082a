"""Regression with the squared error, averaged over all elements.

Shapes: B samples. Outputs and targets are floats (B, ...).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpdrun.data.base import Batch, targets_of
from cpdrun.record.measure import ERROR, Measure
from cpdrun.tasks.base import Task, described, prediction_of


class Regression(Task):
    """Regression. The metrics are the mean squared error (`loss`) and the mean absolute error."""

    measures: Mapping[str, Measure] = {"loss": ERROR, "absolute_error": ERROR}
    judged_by = "loss"

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return F.mse_loss(prediction_of(outputs), targets_of(batch))

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        prediction, y = prediction_of(outputs), targets_of(batch)
        return {
            "squares": F.mse_loss(prediction, y, reduction="sum"),
            "distances": F.l1_loss(prediction, y, reduction="sum"),
            "seen": torch.tensor(y.numel(), device=y.device),
        }

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        seen = max(totals["seen"].item(), 1)
        return {"loss": totals["squares"].item() / seen, "absolute_error": totals["distances"].item() / seen}

    def unfit_targets(self, batch: Batch) -> str | None:
        y = targets_of(batch)
        good = isinstance(y, Tensor) and y.is_floating_point()
        return None if good else f"are {described(y)}; the loss is a squared error, which needs floats"

    def unfit_outputs(self, outputs: Any, batch: Batch) -> str | None:
        prediction, y = prediction_of(outputs), targets_of(batch)
        if isinstance(prediction, Tensor) and prediction.shape == y.shape:
            return None
        return f"gives {described(prediction)} for targets {described(y)}: their shapes must be equal"
