"""The loss of a training step: cross-entropy, and that of auxiliary heads where the model has some."""

import torch.nn.functional as F
from torch import Tensor

from cpdrun.models.auxiliary import WithAuxiliary


def training_loss(outputs: Tensor | WithAuxiliary, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """outputs: what the model gives while it trains, logits (B, K, ...) float32; y: (B, ...) int64. A mean, ()."""
    if isinstance(outputs, WithAuxiliary):
        main, other = (F.cross_entropy(x, y, label_smoothing=label_smoothing) for x in outputs[:2])
        return main + outputs.weight * other
    return F.cross_entropy(outputs, y, label_smoothing=label_smoothing)
