"""torch.nn.MultiheadAttention with rounded products. attention.py describes the two products of attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from custom_fp.layers.attention import probabilities, weighted_values
from custom_fp.layers.modules import Quantized, project
from custom_fp.layers.operations import SCORES, VALUES, Operations
from custom_fp.layers.products import Arithmetic


class QuantMultiheadAttention(Quantized, nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with rounded products. Nested tensors are not supported.

    Attributes:
        arithmetic: The arithmetic of the projections. If query, key and value are the same tensor, one product
            projects all three.
        attached_operations: The arithmetic of the two products of attention.
    """

    attached_operations: Operations

    @classmethod
    def from_module(cls, module: nn.Module, arithmetic: Arithmetic) -> QuantMultiheadAttention:
        """Return a layer with the parameters, hooks and settings of a torch.nn.MultiheadAttention."""
        layer = super().from_module(module, arithmetic)
        layer.__dict__.setdefault(
            "attached_operations", Operations({SCORES: Arithmetic(), VALUES: Arithmetic()})
        )
        return layer

    @classmethod
    def attach_to(cls, module: nn.Module, arithmetic: Arithmetic) -> None:
        """Attach an arithmetic to a torch.nn.MultiheadAttention in place."""
        super().attach_to(module, arithmetic)
        module.__dict__.setdefault(
            "attached_operations", Operations({SCORES: Arithmetic(), VALUES: Arithmetic()})
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention with the arguments and results of torch.nn.MultiheadAttention."""
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        if query.dim() == 2:
            batch = 0 if self.batch_first else 1
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
            if query is key is value:  # keep one tensor, so that one product projects all three
                inputs = (query.unsqueeze(batch),) * 3
            else:
                inputs = query.unsqueeze(batch), key.unsqueeze(batch), value.unsqueeze(batch)
            result, weights = self(*inputs, key_padding_mask, need_weights, attn_mask, average_attn_weights)
            return result.squeeze(batch), None if weights is None else weights.squeeze(0)
        q_BxLxE, k_BxSxE, v_BxSxE = self._project(query, key, value)
        k_BxSxE, v_BxSxE, extra_keys = self._append_keys(k_BxSxE, v_BxSxE)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q_BxLxE, k_BxSxE, v_BxSxE))
        mask = _additive_mask(q, attn_mask, key_padding_mask, extra_keys)
        scores, values = (self.attached_operations.use(part, self.training) for part in (SCORES, VALUES))
        weights_BxHxLxS = probabilities(q, k, mask, 1 / math.sqrt(self.head_dim), scores)
        if self.training and self.dropout:
            weights_BxHxLxS = F.dropout(weights_BxHxLxS, self.dropout)
        heads = weighted_values(weights_BxHxLxS, v, values).to(query.dtype).transpose(1, 2).flatten(2)
        result = project(self.active_arithmetic, heads, self.out_proj.weight, self.out_proj.bias)
        result = result if self.batch_first else result.transpose(0, 1)
        if not need_weights:
            return result, None
        return result, weights_BxHxLxS.mean(1) if average_attn_weights else weights_BxHxLxS

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return the projections of query, key and value, with the batch as the first dimension."""
        inputs = [x if self.batch_first else x.transpose(0, 1) for x in (query, key, value)]
        if self._qkv_same_embed_dim and query is key is value:
            packed = project(self.active_arithmetic, inputs[0], self.in_proj_weight, self.in_proj_bias)
            return list(packed.chunk(3, -1))
        weights: list[Any] = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        if self._qkv_same_embed_dim:
            weights = list(self.in_proj_weight.chunk(3))
        biases: Any = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            project(self.active_arithmetic, x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)
        ]

    def _append_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Append the layer's learned and all-zero keys and values, if any. Return k, v and the number of added keys."""
        count = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat([x, b.to(x.dtype).expand(len(x), 1, -1)], 1)
                for x, b in ((k, self.bias_k), (v, self.bias_v))
            )
            count += 1
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
            count += 1
        return k, v, count


def _additive_mask(
    q: Tensor, attn_mask: Tensor | None, padding: Tensor | None, extra_keys: int
) -> Tensor | None:
    """Return the float mask that MultiheadAttention adds to the scores, or None if no masks are given.

    The result can be broadcast to (B, H, L, S). In the boolean masks of MultiheadAttention, True hides a key. The last
    `extra_keys` keys are visible to all queries.
    """
    B, H = q.shape[:2]
    masks = []
    if attn_mask is not None:  # (L, S) or (B * H, L, S)
        masks.append(attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (B, H)))
    if padding is not None:  # (B, S)
        masks.append(padding[:, None, None, :])
    if not masks:
        return None
    total: Any = sum(
        torch.zeros(mask.shape, device=q.device).masked_fill(mask, -math.inf)
        if mask.dtype is torch.bool
        else mask
        for mask in masks
    )
    return F.pad(total, (0, extra_keys))
