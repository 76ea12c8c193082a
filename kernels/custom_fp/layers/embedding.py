"""Embeddings that round the rows when they are looked up, and that round the gradients of these rows."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from custom_fp.layers.modules import Quantized
from custom_fp.layers.products import FORWARD, WEIGHT_GRADIENT, round_along, round_gradient


class QuantEmbedding(Quantized, nn.Embedding):
    """torch.nn.Embedding with rounding.

    The layer uses these roundings of its arithmetic and ignores all others:

        (weight, forward)                    rounds the rows that are looked up, each along its elements
        (result, forward)                    rounds the output, after the rows were rounded
        (output_gradient, weight_gradient)   rounds the gradient of the output, each row along its elements
        (result, weight_gradient)            rounds the gradient of the weight, after rows are added in float32

    If the format has one scale for the tensor, only the rows that are looked up determine the scale.
    """

    def forward(self, index: Tensor) -> Tensor:
        """Look up rows in the same way as torch.nn.Embedding."""
        weight, get = self.weight, self.active_arithmetic.roundings.get
        if (rounding := get(("result", WEIGHT_GRADIENT))) is not None:
            weight = round_gradient(weight, rounding)
        rows = F.embedding(
            index,
            weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )
        if (gradient_rounding := get(("output_gradient", WEIGHT_GRADIENT))) is not None:
            rows = round_gradient(rows, lambda grad: round_along(gradient_rounding, grad, -1))
        if (rounding := get(("weight", FORWARD))) is not None:
            rows = round_along(rounding, rows, -1).to(rows.dtype)
        if (rounding := get(("result", FORWARD))) is not None:
            rows = rounding(rows).to(rows.dtype)
        return rows
