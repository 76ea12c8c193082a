"""Prediction of the next token of a text at every position.

If a batch is (tokens, next tokens), the targets are the next tokens (B, T). If a batch is a mapping, as in Hugging
Face's libraries, `labels` are the tokens themselves, which this task shifts by one position. The logits are (B, V, T),
or (B, T, V) if the model's output has them as `logits`, as in the library transformers.

Shapes: B texts, T positions, V tokens of the vocabulary.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cpdrun.data.base import Batch
from cpdrun.record.measure import BITS, ERROR
from cpdrun.tasks.classification import Classification


class NextToken(Classification):
    """Prediction of the next token.

    The metrics are the perplexity per token and, if `bytes_per_token` is known, the bits per byte.

    Args:
        num_classes: The number of tokens V of the vocabulary.
        bytes_per_token: The average number of bytes of a token of the test text. It is 1 if tokens are bytes.
        label_smoothing: The fraction of each target that is spread evenly over all tokens, in training only.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        bytes_per_token: float | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__(num_classes, label_smoothing)
        self.bytes_per_token = bytes_per_token
        self.measures = Classification.measures | {"perplexity": ERROR}
        self.judged_by = "perplexity"
        if bytes_per_token is not None:
            self.measures = self.measures | {"bits_per_byte": BITS}
            self.judged_by = "bits_per_byte"

    def compared(self, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, y = super().compared(outputs, batch)
        if isinstance(batch, Mapping):
            logits, y = logits[:, :-1], y[:, 1:]
        elif isinstance(outputs, Tensor):
            return logits, y
        return logits.flatten(0, 1), y.flatten()  # Each position becomes a sample: (B * T, V) and (B * T,).

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        metrics = super().metrics(totals)
        if self.bytes_per_token is not None:
            metrics["bits_per_byte"] = metrics["loss"] / math.log(2) / self.bytes_per_token
        try:
            metrics["perplexity"] = math.exp(metrics["loss"])
        except OverflowError:  # The run has diverged.
            metrics["perplexity"] = math.inf
        return metrics
