"""What a run learns: how a model is called with a batch, the loss, and what is measured on held-out data.

A batch is (inputs, targets), or a mapping that the model takes by name, its targets under `labels`, as Hugging Face
has it. Inputs and targets are tensors, or tuples, lists and dicts of tensors. Legend: B samples a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from cpdrun.data.base import Batch
from cpdrun.record.measure import Measure


class Task(ABC):
    """A class of your own has this base, or another task's; its arguments are taken from its yaml and, where a data set
    states a fact of that name (num_classes, ...) and the yaml does not, from the data; `label_smoothing` from the run.

    measures: each metric, by the name that `metrics` gives it; `loss` is among them. judged_by: the one that a report
    compares, and by which the best epoch is known.
    """

    measures: Mapping[str, Measure]
    judged_by: str

    def outputs(self, model: Callable[..., Any], batch: Batch) -> Any:
        """What the model gives for the batch: it is called with a mapping's entries by name, a tuple's in order."""
        inputs = batch if isinstance(batch, Mapping) else batch[0]
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """What a training step makes smaller: (), a mean over the batch.

        With emulation=batched or chunked it runs inside torch.func.vmap: no value of a tensor may steer it.
        """

    def loss_of(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """The loss of the model on the batch."""
        return self.loss(self.outputs(model, batch), batch)

    @abstractmethod
    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """What `metrics` needs, of one batch, to be added over all: counts are integers, exact in any order; anything
        else is a float, added in the order of the batches. Of the same names and shapes for every batch."""

    @abstractmethod
    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """The metrics, from the totals of `sums` (float64 and int64) over the test set."""

    def example_outcomes(self, outputs: Any, batch: Batch) -> Tensor | None:
        """Return the class of each sample of a test batch and whether it is answered right (1 or 0), int64 (B, 2).

        Return None, for every batch, if the metric `judged_by` is anything else than the share of samples that are
        answered right; this is the default.
        """
        return None

    def loss_range(self) -> tuple[float, float] | None:
        """The training loss of a model that is always right, and of one that guesses; None where that is not known, and
        `give_up_after` is refused."""
        return None

    def unfit_targets(self, batch: Batch) -> str | None:
        """Why the loss cannot mean these targets, as the end of `the targets of DATA ...`; None where it can."""
        return None

    def unfit_outputs(self, outputs: Any, batch: Batch) -> str | None:
        """Why the loss cannot mean these outputs, as the end of `MODEL ...`; None where it can."""
        return None


def prediction_of(outputs: Any) -> Any:
    """The logits of an object or mapping that has them, as Hugging Face's; anything else as it is."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return getattr(outputs, "logits", outputs)


def described(value: Any) -> str:
    """`float32 of shape (1, 10)`, `a tuple`."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
