"""Attention whose two matrix products have rounded operands, sums and results.

    S = Q K^T           `scores`: input Q, weight K, output_gradient dS
    P = softmax(S / sqrt(d) + mask), with dropout
    O = P V             `values`: input P, weight V, output_gradient dO

Both `scores` and `values` have three products (see products.py): forward, input_gradient (dQ = dS K, dP = dO V^T) and
weight_gradient (dK = dS^T Q, dV = P^T dO). Scale, mask, softmax and dropout are computed in float32. The arguments have
the same meaning as in torch's scaled_dot_product_attention: is_causal, boolean and additive masks, scale, and grouped
queries. A row without any visible key gives zeros, as in PyTorch. PyTorch's fused kernels add the same numbers in
another order.

Shapes: B batch, H heads, L queries, S keys, E elements of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from custom_fp.layers.attachment import attach_
from custom_fp.layers.modules import Quantized, project
from custom_fp.layers.products import Arithmetic, Matrices, Sums

SDPA = "scaled_dot_product_attention"
SCORES, VALUES = "scores", "values"
_FUNCTION = F.scaled_dot_product_attention


@dataclass
class Attention:
    """The arithmetic of both products of attention.

    Attributes:
        scores: The arithmetic of Q K^T.
        values: The arithmetic of P V.
        called: Whether the attention has been computed at least once.
    """

    scores: Arithmetic = field(default_factory=Arithmetic)
    values: Arithmetic = field(default_factory=Arithmetic)
    called: bool = False

    def __bool__(self) -> bool:
        return bool(self.scores or self.values)

    def for_mode(self, training: bool) -> tuple[Arithmetic, Arithmetic]:
        """Return the arithmetic of both products. In evaluation, nothing is rounded stochastically."""
        if training:
            return self.scores, self.values
        return self.scores.evaluated, self.values.evaluated

    def __str__(self) -> str:
        parts = {SCORES: self.scores, VALUES: self.values}
        return "; ".join(f"{name}: {arithmetic}" for name, arithmetic in parts.items() if arithmetic)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    scores: Arithmetic,
    values: Arithmetic,
) -> Tensor:
    """Compute torch.nn.functional.scaled_dot_product_attention with the given arithmetic for each product.

    Returns:
        A tensor of shape (..., L, E) with the query's dtype.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention accepts is_causal or attn_mask, but not both")
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query_, key, value = (x.expand(*leading, *x.shape[-2:]) for x in (query, key, value))
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    weights = probabilities(query_, key, attn_mask, scale, scores)
    weights = F.dropout(weights, dropout_p) if dropout_p else weights
    return weighted_values(weights, value, values).to(query.dtype)


def probabilities(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float, scores: Arithmetic
) -> Tensor:
    """Return the attention weights as float32, of shape (..., L, S).

    Args:
        query: A tensor of shape (..., L, E).
        key: A tensor of shape (..., S, E).
        mask: A boolean mask is true for keys that are visible to a query. Any other mask is added to the scores.
        scale: The factor by which the scores are multiplied.
        scores: The arithmetic of the product.
    """
    if scores.accumulators:
        score = scores.multiply(Sums(scores), query, key, w_as=_transpose) * scale
    else:
        score = scores.multiply(Matrices(), query, key) * scale
    if mask is None:
        return score.softmax(-1)
    score = score.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else score + mask.float()
    sees_none = (score == -math.inf).all(-1, keepdim=True)
    return score.masked_fill(sees_none, 0.0).softmax(-1).masked_fill(sees_none, 0.0)


def weighted_values(weights: Tensor, value: Tensor, values: Arithmetic) -> Tensor:
    """Return the product of weights (..., L, S) and values (..., S, E) as float32, of shape (..., L, E)."""
    if values.accumulators:
        return values.multiply(Sums(values), weights, value)
    return values.multiply(Matrices(), weights, value.mT)


def _transpose(x: Tensor) -> Tensor:
    return x.mT


# ---- calls of PyTorch's function in a user's module


class _ReplaceAttention(TorchFunctionMode):
    """A mode in which scaled_dot_product_attention is computed with the arithmetic of `module`.

    If the module has no arithmetic, PyTorch's own function is called, even if modules around it have an arithmetic.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is not _FUNCTION:
            return func(*args, **kwargs)
        attention = self.module.attention_products
        attention.called = True
        if not attention:  # calls the operator, because outer modes would replace a call of the function
            return torch.ops.aten.scaled_dot_product_attention.default(*args, **kwargs)
        scores, values = attention.for_mode(self.module.training)
        return attend(*args, **kwargs, scores=scores, values=values)


class AttentionCaller:
    """The `forward` method of a user's module, in which calls of scaled_dot_product_attention are replaced."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the user's forward."""
        with _ReplaceAttention(self):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


def replace_attention_(module: nn.Module) -> None:
    """Replace scaled_dot_product_attention in the module's forward by an `Attention` that rounds nothing yet.

    The module stays the same object.
    """
    if "attention_products" not in module.__dict__:
        attach_(module, AttentionCaller)
        module.__dict__["attention_products"] = Attention()


# ---- torch.nn.MultiheadAttention


class QuantMultiheadAttention(Quantized, nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with rounded products. Nested tensors are not supported.

    Attributes:
        arithmetic: The arithmetic of the projections. If query, key and value are the same tensor, one product
            projects all three.
        attention_products: The arithmetic of the two products of attention.
    """

    attention_products: Attention

    @classmethod
    def from_module(cls, module: nn.Module, arithmetic: Arithmetic) -> QuantMultiheadAttention:
        """Return a layer with the parameters, hooks and settings of a torch.nn.MultiheadAttention."""
        layer = super().from_module(module, arithmetic)
        layer.__dict__.setdefault("attention_products", Attention())
        return layer

    @classmethod
    def attach_to(cls, module: nn.Module, arithmetic: Arithmetic) -> None:
        """Attach an arithmetic to a torch.nn.MultiheadAttention, which stays the same object."""
        super().attach_to(module, arithmetic)
        module.__dict__.setdefault("attention_products", Attention())

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
            if query is key is value:  # keep them the same tensor, so that one product projects all three
                inputs = (query.unsqueeze(batch),) * 3
            else:
                inputs = query.unsqueeze(batch), key.unsqueeze(batch), value.unsqueeze(batch)
            result, weights = self(*inputs, key_padding_mask, need_weights, attn_mask, average_attn_weights)
            return result.squeeze(batch), None if weights is None else weights.squeeze(0)
        q_BxLxE, k_BxSxE, v_BxSxE = self._project(query, key, value)
        k_BxSxE, v_BxSxE, extra_keys = self._append_keys(k_BxSxE, v_BxSxE)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q_BxLxE, k_BxSxE, v_BxSxE))
        mask = _additive_mask(q, attn_mask, key_padding_mask, extra_keys)
        scores, values = self.attention_products.for_mode(self.training)
        self.attention_products.called = True
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
        """Append the learned key and the zero key if the layer has them, and return how many were appended."""
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
    """Return the float mask (B, H, L, S) that a MultiheadAttention adds to the scores, or None if it has no masks.

    In boolean masks of MultiheadAttention, true hides a key. The last `extra_keys` keys are visible to all queries.
    """
    B, H = q.shape[:2]
    masks = []
    if attn_mask is not None:  # (L, S) or (B H, L, S)
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
