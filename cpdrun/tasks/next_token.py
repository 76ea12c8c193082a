"""The next token of a text, at every position.

Legend: B texts, T positions, V tokens of the vocabulary. With batches of (tokens, next tokens), logits are (B, V, T)
and stand beside their targets; with a mapping of Hugging Face's names, logits are (B, T, V) and `labels` are the tokens
themselves, which this task moves by one.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cpdrun.data.base import Batch
from cpdrun.record.measure import BITS, ERROR
from cpdrun.tasks.classification import Classification


class NextToken(Classification):
    """perplexity: of a token. bits_per_byte: where the data states bytes_per_token, those of a token of its test text
    on average (1 for text by bytes)."""

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
        return (logits[:, :-1].transpose(1, 2), y[:, 1:]) if isinstance(batch, Mapping) else (logits, y)

    def metrics(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        metrics = super().metrics(totals)
        if self.bytes_per_token is not None:
            metrics["bits_per_byte"] = metrics["loss"] / math.log(2) / self.bytes_per_token
        try:
            metrics["perplexity"] = math.exp(metrics["loss"])
        except OverflowError:  # of a diverged run
            metrics["perplexity"] = math.inf
        return metrics
