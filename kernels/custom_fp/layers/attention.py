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
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from custom_fp.layers.products import Arithmetic, Matrices, Sums
from custom_fp.operators.registration import is_plain


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
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    weights = probabilities(query_, key, attn_mask, scale, scores, is_causal=is_causal)
    weights = F.dropout(weights, dropout_p) if dropout_p else weights
    return weighted_values(weights, value, values).to(query.dtype)


def probabilities(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    scale: float,
    scores: Arithmetic,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Return the attention weights as float32, of shape (..., L, S).

    Args:
        query: A tensor of shape (..., L, E).
        key: A tensor of shape (..., S, E).
        mask: A boolean mask is true for keys that are visible to a query. Any other mask is added to the scores.
        scale: The factor by which the scores are multiplied.
        scores: The arithmetic of the product.
        is_causal: Whether query i sees keys 0 to i only. There must be no other mask.
    """
    if scores.accumulators:
        score = scores.multiply(Sums(scores), query, key, w_as=_transpose)
    else:
        score = scores.multiply(Matrices(), query, key)
    if is_causal:
        return CausalSoftmax.apply(score, scale)
    score = score * scale
    if mask is None:
        return score.softmax(-1)
    score = score.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else score + mask.float()
    sees_none = (score == -math.inf).all(-1, keepdim=True)
    return score.masked_fill(sees_none, 0.0).softmax(-1).masked_fill(sees_none, 0.0)


class CausalSoftmax(torch.autograd.Function):
    """The softmax of scaled scores (..., L, S), in which query i sees keys 0 to i only.

    It gives the same bits as a boolean mask in `probabilities`, with fewer passes over the scores.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(score: Tensor, scale: float) -> Tensor:
        hidden = torch.full(score.shape[-2:], -math.inf, device=score.device).triu(1)
        # This is faster than masked_fill_. Without tril_, a hidden NaN or inf would become NaN instead of -inf.
        score = (score * scale).tril_().add_(hidden)
        weights = score.softmax(-1)
        # If all visible scores of a query are -inf, softmax returns NaN, but its weights must be 0. On a CPU, the
        # first column shows whether there is any NaN. On a GPU, reading it would synchronize, and in a transform
        # of torch.func it would fail.
        if not (is_plain(score) and score.is_cpu) or weights[..., :1].isnan().any():
            sees_none = score.amax(-1, keepdim=True) == -math.inf
            weights.masked_fill_(sees_none, 0.0)
        return weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.scale = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (weights,) = ctx.saved_tensors
        # Hidden keys have weight 0, and so their gradients are 0.
        return torch._softmax_backward_data(grad, weights, -1, weights.dtype).mul_(ctx.scale), None


def weighted_values(weights: Tensor, value: Tensor, values: Arithmetic) -> Tensor:
    """Return the product of weights (..., L, S) and values (..., S, E) as float32, of shape (..., L, E)."""
    if values.accumulators:
        return values.multiply(Sums(values), weights, value)
    return values.multiply(Matrices(), weights, value.mT)


def _transpose(x: Tensor) -> Tensor:
    return x.mT
