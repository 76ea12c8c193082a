"""Embeddings whose rows are rounded as they are looked up, and the gradient that arrives at them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from custom_fp.layers.modules import Quantized
from custom_fp.layers.products import FORWARD, WEIGHT_GRADIENT, Round, round_gradient


class QuantEmbedding(Quantized, nn.Embedding):
    """torch.nn.Embedding by an arithmetic, of which it reads

        weight, forward                    the rows that are looked up, each along its elements
        result, forward                    what it gives, after that
        output_gradient, weight_gradient   the gradient that arrives, likewise
        result, weight_gradient            the sum of those of each row

    The rest of an arithmetic says nothing of an embedding; sums are float32. A format with one scale for the tensor has
    that of the rows looked up.
    """

    def forward(self, index: Tensor) -> Tensor:
        weight, of = self.weight, self.in_force.roundings.get
        if (rounding := of(("result", WEIGHT_GRADIENT))) is not None:
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
        if (rounding := of(("output_gradient", WEIGHT_GRADIENT))) is not None:
            rows = round_gradient(rows, _AlongRows(rounding))
        if (rounding := of(("weight", FORWARD))) is not None:
            rows = _AlongRows(rounding)(rows).to(rows.dtype)
        if (rounding := of(("result", FORWARD))) is not None:
            rows = rounding(rows).to(rows.dtype)
        return rows


class _AlongRows:
    def __init__(self, rounding: Round) -> None:
        self.rounding = rounding

    def __call__(self, rows: Tensor) -> Tensor:
        has_axis = getattr(self.rounding, "has_axis", False)
        return self.rounding.along(rows, -1) if has_axis else self.rounding(rows)
