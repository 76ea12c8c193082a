"""The output of a model with an auxiliary head during training.

An auxiliary head is a second classifier on an inner layer, for deep supervision (Zhao et al., arXiv 1612.01105, section
3.2). Only the loss uses its logits. In evaluation, such a model returns its main logits alone.
"""

from typing import NamedTuple

from torch import Tensor


class WithAuxiliary(NamedTuple):
    """The logits of the main head and of the auxiliary head.

    The loss is the loss of `logits` plus `weight` times the loss of `auxiliary`.

    Attributes:
        logits: The logits of the main head, (B, num_classes, ...) float32.
        auxiliary: The logits of the auxiliary head, with the same shape and dtype.
        weight: The weight of the auxiliary loss.
    """

    logits: Tensor
    auxiliary: Tensor
    weight: float
