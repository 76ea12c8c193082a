"""Any loss that the model computes itself and returns as `loss` of its outputs.

Hugging Face models do this if the batch contains labels.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cpdrun.data.base import Batch
from cpdrun.record.measure import ERROR, Measure
from cpdrun.tasks.base import Task


class ModelLoss(Task):
    """The loss of the model.

    The test loss is the mean over the test batches, weighted by their numbers of samples.
    """

    measures: Mapping[str, Measure] = {"loss": ERROR}
    judged_by = "loss"

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return outputs["loss"] if isinstance(outputs, Mapping) else outputs.loss

    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        loss = self.loss(outputs, batch)
        first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[1]
        return {"loss": loss * len(first), "seen": torch.tensor(len(first), device=loss.device)}

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        return {"loss": totals["loss"].item() / max(totals["seen"].item(), 1)}

    def unfit_outputs(self, outputs: Any, batch: Batch) -> str | None:
        has = "loss" in outputs if isinstance(outputs, Mapping) else hasattr(outputs, "loss")
        loss = self.loss(outputs, batch) if has else None
        if isinstance(loss, Tensor) and loss.dim() == 0:
            return None
        return (
            "gives no `loss` that is a tensor of one number: does the batch contain the labels that it needs?"
        )
