"""The base class of tasks: how a model is called with a batch, the loss, and the metrics of the test set.

A batch is (inputs, targets), or a mapping whose entries are the keyword arguments of the model, with the targets under
the key `labels`, as in Hugging Face's libraries. Inputs and targets are tensors, or tuples, lists and dicts of tensors.

Shapes: B samples per batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from cpdrun.data.base import Batch
from cpdrun.record.measure import Measure


class Task(ABC):
    """The base class of tasks.

    The yaml file of a task sets the arguments of its class. If the yaml file does not set an argument, and the data has
    a fact of the same name (such as num_classes), the fact is passed. `label_smoothing` comes from the run.

    Attributes:
        measures: How each metric that `metrics` returns is judged and displayed, by name. `loss` is one of them.
        judged_by: The name of the metric that reports compare and that determines the best epoch.
    """

    measures: Mapping[str, Measure]
    judged_by: str

    def outputs(self, model: Callable[..., Any], batch: Batch) -> Any:
        """Return the outputs of the model for a batch.

        A mapping is passed to the model as keyword arguments, and a tuple or list of inputs as positional arguments.
        """
        inputs = batch if isinstance(batch, Mapping) else batch[0]
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """Return the training loss, a scalar tensor that is the mean over the batch.

        With emulation=batched or chunked, this method runs inside torch.func.vmap, so the values of tensors must not
        influence the control flow.
        """

    def loss_of(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """Return the loss of the model on the batch."""
        return self.loss(self.outputs(model, batch), batch)

    @abstractmethod
    def sums(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the sums over one batch that `metrics` needs, by name.

        The names and shapes must be the same for every batch. The sums are added over all batches. Counts must have an
        integer dtype, so that their totals are exact in any order. Other sums are floats, which are added in the order
        of the batches.
        """

    @abstractmethod
    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the metrics of the test set.

        Args:
            totals: The totals of `sums` over the test set, float64 or int64.
        """

    def example_outcomes(self, outputs: Any, batch: Batch) -> Tensor | None:
        """Return the class of each sample of a test batch and whether its answer is correct (1 or 0), int64 (B, 2).

        Return None for every batch, as this default does, if the metric `judged_by` is not the fraction of samples
        whose answer is correct.
        """
        return None

    def loss_range(self) -> tuple[float, float] | None:
        """Return the training loss of a model that is always correct and of a model that guesses.

        Return None if the losses are not known. `give_up_after` is then not allowed.
        """
        return None

    def unfit_targets(self, batch: Batch) -> str | None:
        """Return why the loss cannot use the targets of a batch, or None if it can.

        The text is the end of a sentence that starts with `the targets of DATA`.
        """
        return None

    def unfit_outputs(self, outputs: Any, batch: Batch) -> str | None:
        """Return why the loss cannot use these outputs of the model, or None if it can.

        The text is the end of a sentence that starts with the name of the model.
        """
        return None


def prediction_of(outputs: Any) -> Any:
    """Return the logits if the outputs have `logits`, as in Hugging Face's libraries, or else the outputs."""
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return getattr(outputs, "logits", outputs)


def described(value: Any) -> str:
    """Return a short description of a value, such as `float32 of shape (1, 10)` or `a tuple`."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
