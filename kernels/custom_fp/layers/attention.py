"""Attention whose two products have operands, sums and results of their own rounding.

    S = Q K^T           `scores`: input Q, weight K, output_gradient dS
    P = softmax(S / sqrt(d) + mask), dropped out
    O = P V             `values`: input P, weight V, output_gradient dO

each with its three products (products.py): forward, input_gradient (dQ = dS K, dP = dO V^T) and weight_gradient
(dK = dS^T Q, dV = P^T dO). Scale, mask, softmax and dropout are float32. torch's scaled_dot_product_attention is
followed (is_causal, boolean and additive masks, scale, grouped queries), whose fused kernels form the same numbers in
another order; a row without any key gives zeros, as there.

Legend: B batch, H heads, L queries, S keys, E elements of a head.
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
    """The arithmetic of both products; `called`: whether it has ever been used."""

    scores: Arithmetic = field(default_factory=Arithmetic)
    values: Arithmetic = field(default_factory=Arithmetic)
    called: bool = False

    def __bool__(self) -> bool:
        return bool(self.scores or self.values)

    def of_mode(self, training: bool) -> tuple[Arithmetic, Arithmetic]:
        both = self.scores, self.values
        return both if training else tuple(of.evaluated for of in both)

    def __str__(self) -> str:
        parts = {SCORES: self.scores, VALUES: self.values}
        return "; ".join(f"{name}: {of}" for name, of in parts.items() if of)


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
    """torch.nn.functional.scaled_dot_product_attention by these arithmetics: (..., L, E), of the query's dtype."""
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention takes is_causal or attn_mask, not both")
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
    return mixed(weights, value, values).to(query.dtype)


def probabilities(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float, scores: Arithmetic
) -> Tensor:
    """(..., L, S) float32. mask: where it is true a key is seen, or what is added to the scores."""
    kernel, as_columns = (Sums(scores), _transposed) if scores.accumulators else (Matrices(), _as_it_is)
    found = scores.multiply(kernel, query, key, w_as=as_columns) * scale
    if mask is None:
        return found.softmax(-1)
    found = found.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else found + mask.float()
    unseen = (found == -math.inf).all(-1, keepdim=True)
    return found.masked_fill(unseen, 0.0).softmax(-1).masked_fill(unseen, 0.0)


def mixed(weights: Tensor, value: Tensor, values: Arithmetic) -> Tensor:
    """(..., L, S) x (..., S, E) -> (..., L, E) float32."""
    if values.accumulators:
        return values.multiply(Sums(values), weights, value)
    return values.multiply(Matrices(), weights, value.mT)


def _transposed(x: Tensor) -> Tensor:
    return x.mT


def _as_it_is(x: Tensor) -> Tensor:
    return x


# ---- wherever a module calls torch's function


class _Replaced(TorchFunctionMode):
    """Within it, calls of scaled_dot_product_attention are `module`'s: by its arithmetic, or, if it has none, torch's
    own, whatever modules around it have."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is not _FUNCTION:
            return func(*args, **kwargs)
        attention = self.module.attention_products
        attention.called = True
        if not attention:  # by its operator, which modes around this one do not take for the function
            return torch.ops.aten.scaled_dot_product_attention.default(*args, **kwargs)
        scores, values = attention.of_mode(self.module.training)
        return attend(*args, **kwargs, scores=scores, values=values)


class Attending:
    """The forward of a user's module whose calls of scaled_dot_product_attention are replaced."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Replaced(self):
            return super().forward(*args, **kwargs)


def attend_by_(module: nn.Module) -> Attention:
    """Replace scaled_dot_product_attention in the module's forward, and return the arithmetic of the replacement, which
    is torch's own at first. The module stays the same object."""
    if "attention_products" not in module.__dict__:
        attach_(module, Attending)
        module.__dict__["attention_products"] = Attention()
    return module.attention_products


# ---- torch's layer


class QuantMultiheadAttention(Quantized, nn.MultiheadAttention):
    """torch.nn.MultiheadAttention, its projections by `arithmetic` and its two products by `attention_products`. Of one
    tensor q, k and v are projected by one product. Nested tensors are not taken."""

    @classmethod
    def from_module(cls, module: nn.Module, arithmetic: Arithmetic) -> QuantMultiheadAttention:
        layer = super().from_module(module, arithmetic)
        layer.__dict__.setdefault("attention_products", Attention())
        return layer

    @classmethod
    def attach_to(cls, module: nn.Module, arithmetic: Arithmetic) -> None:
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
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        if query.dim() == 2:
            batch = 0 if self.batch_first else 1
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
            one = (query.unsqueeze(batch),) * 3 if query is key is value else None
            given = one or [x.unsqueeze(batch) for x in (query, key, value)]
            result, weights = self(*given, key_padding_mask, need_weights, attn_mask, average_attn_weights)
            return result.squeeze(batch), None if weights is None else weights.squeeze(0)
        q_BxLxE, k_BxSxE, v_BxSxE = self._projected(query, key, value)
        k_BxSxE, v_BxSxE, more = self._with_more_keys(k_BxSxE, v_BxSxE)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in (q_BxLxE, k_BxSxE, v_BxSxE))
        mask = _added(q, attn_mask, key_padding_mask, more)
        scores, values = self.attention_products.of_mode(self.training)
        self.attention_products.called = True
        weights_BxHxLxS = probabilities(q, k, mask, 1 / math.sqrt(self.head_dim), scores)
        if self.training and self.dropout:
            weights_BxHxLxS = F.dropout(weights_BxHxLxS, self.dropout)
        heads = mixed(weights_BxHxLxS, v, values).to(query.dtype).transpose(1, 2).flatten(2)
        result = project(self.in_force, heads, self.out_proj.weight, self.out_proj.bias)
        result = result if self.batch_first else result.transpose(0, 1)
        if not need_weights:
            return result, None
        return result, weights_BxHxLxS.mean(1) if average_attn_weights else weights_BxHxLxS

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """q, k and v, the batch first."""
        given = [x if self.batch_first else x.transpose(0, 1) for x in (query, key, value)]
        if self._qkv_same_embed_dim and query is key is value:
            packed = project(self.in_force, given[0], self.in_proj_weight, self.in_proj_bias)
            return list(packed.chunk(3, -1))
        weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        if self._qkv_same_embed_dim:
            weights = list(self.in_proj_weight.chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [project(self.in_force, x, w, b) for x, w, b in zip(given, weights, biases, strict=True)]

    def _with_more_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """With the learnt key and the one of zeros that the layer may have; and how many these are."""
        more = 0
        if self.bias_k is not None:
            k, v = (
                torch.cat([x, b.to(x.dtype).expand(len(x), 1, -1)], 1)
                for x, b in ((k, self.bias_k), (v, self.bias_v))
            )
            more += 1
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
            more += 1
        return k, v, more


def _added(q: Tensor, attn_mask: Tensor | None, padding: Tensor | None, more: int) -> Tensor | None:
    """What is added to the scores (B, H, L, S), for the masks of a MultiheadAttention, in which true hides a key; None
    for nothing. The last `more` keys are seen by all."""
    B, H = q.shape[:2]
    given = []
    if attn_mask is not None:  # (L, S) or (B H, L, S)
        given.append(attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (B, H)))
    if padding is not None:  # (B, S)
        given.append(padding[:, None, None, :])
    as_numbers = [
        torch.zeros(mask.shape, device=q.device).masked_fill(mask, -math.inf)
        if mask.dtype is torch.bool
        else mask
        for mask in given
    ]
    return F.pad(sum(as_numbers), (0, more)) if given else None
