"""A small Llama with a mixture of experts in place of the perceptron of each block, as in Mixtral.

    p = softmax(router(x)) over all E experts;  the K largest of p, divided by their sum, are the weights w
    mixture(x) = sum over these K experts of w_e * down_e(silu(gate_e(x)) * up_e(x))

Source: Mixtral, Jiang et al. (arXiv 2401.04088, section 2.1). The weights of all experts are stacked and the tokens are
sorted by expert, so that one grouped matrix product computes a layer of all experts. Unlike in Mixtral, no auxiliary
loss balances the load of the experts.

Shapes: B texts per batch, T positions, S = B T tokens, D channels, E experts, K experts per token, R = S K rows (one
for each pair of a token and its expert), F hidden channels of an expert.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpdrun.comm import emulate_all_to_all
from cpdrun.models.llama import Llama


class LlamaMoE(Llama):
    """A Llama whose blocks contain a mixture of experts instead of one perceptron.

    Args:
        num_classes: See `Llama`.
        context: See `Llama`.
        experts: The number of experts E per block.
        experts_per_token: The number of experts K that process each token.
        dispatch: The format of the tokens that are sent to the experts, and of their gradients. Sending is emulated
            (`cpdrun.comm.emulate_all_to_all`). fp32 leaves the tokens unrounded.
        combine: The format of the results that the experts send back, and of their gradients.
        **llama: The other arguments of `Llama`. `hidden` is the number of hidden channels of one expert.

    Raises:
        ValueError: If `experts_per_token` is out of range, or if `Llama` rejects an argument.
    """

    def __init__(
        self,
        num_classes: int,
        context: int,
        *,
        experts: int,
        experts_per_token: int,
        dispatch: str,
        combine: str,
        **llama: Any,
    ) -> None:
        if not 1 <= experts_per_token <= experts:
            raise ValueError(
                f"model.experts_per_token must be between 1 and model.experts = {experts}, not {experts_per_token}"
            )
        chosen = {"experts": experts, "experts_per_token": experts_per_token}
        mlp = partial(MixtureOfExperts, **chosen, dispatch=dispatch, combine=combine)
        super().__init__(num_classes, context, mlp=mlp, **llama)


class MixtureOfExperts(nn.Module):
    """A router and its experts. The router selects K experts for each token."""

    def __init__(
        self, width: int, hidden: int, *, experts: int, experts_per_token: int, dispatch: str, combine: str
    ) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(width, hidden, experts)
        self.experts_per_token, self.dispatch, self.combine = experts_per_token, dispatch, combine

    def forward(self, x_BxTxD: Tensor) -> Tensor:
        x_SxD = x_BxTxD.flatten(0, 1)
        weight_SxK, expert_SxK = self.router(x_SxD).softmax(-1).topk(self.experts_per_token)
        weight_SxK = weight_SxK / weight_SxK.sum(-1, keepdim=True)
        expert_R, order_R = expert_SxK.flatten().sort(stable=True)
        end_E = torch.bincount(expert_R, minlength=self.router.out_features).cumsum(0).int()
        rows_RxD = x_SxD[order_R // self.experts_per_token]
        rows_RxD = emulate_all_to_all(rows_RxD, self.dispatch, gradient_format=self.dispatch)
        found_RxD = self.experts(rows_RxD, end_E)
        found_RxD = emulate_all_to_all(found_RxD, self.combine, gradient_format=self.combine)
        found_SxKxD = found_RxD[order_R.argsort()].unflatten(0, weight_SxK.shape)
        return (weight_SxK[..., None] * found_SxKxD).sum(1).view_as(x_BxTxD)


class Experts(nn.Module):
    """The gated perceptrons of all experts, with stacked weights."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.gate_and_up = nn.Parameter(torch.empty(experts, width, 2 * hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x_RxD: Tensor, end_E: Tensor) -> Tensor:
        """Process rows that are sorted by expert. `end_E` (int32) contains the index after each expert's last row."""
        gate_RxF, up_RxF = F.grouped_mm(x_RxD, self.gate_and_up, offs=end_E).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate_RxF) * up_RxF, self.down, offs=end_E)
