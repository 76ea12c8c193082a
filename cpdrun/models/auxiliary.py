"""What a model with auxiliary heads gives while it trains: its logits, and others that only the loss reads.

Deep supervision by a second classifier on an inner layer (Zhao et al., arXiv 1612.01105, section 3.2). In evaluation
such a model gives its logits alone.
"""

from typing import NamedTuple

from torch import Tensor


class WithAuxiliary(NamedTuple):
    """logits and auxiliary: (B, num_classes, ...) float32; the loss is that of logits + weight * that of auxiliary."""

    logits: Tensor
    auxiliary: Tensor
    weight: float
