"""LAMB: Adam with a learning rate for each layer (You et al., arXiv 1904.00962, algorithm 2).

    m, v   = the moments of Adam, with bias correction
    update = m / (sqrt(v) + eps) + weight_decay * w
    w      = w - lr * |w| / |update| * update

The scaling function phi is the identity, as in the authors' code. If the weights or the update of a layer are all zero,
the ratio |w| / |update| is replaced by 1.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class LAMB(torch.optim.Optimizer):
    """LAMB.

    Args:
        params: float32 parameters of any shape, or parameter groups.
        lr: The learning rate.
        beta1: The decay rate of the first moment.
        beta2: The decay rate of the second moment.
        eps: The number that is added to the square root of the second moment.
        weight_decay: The weight decay.

    Raises:
        ValueError: The learning rate is negative, or a decay rate is not in [0, 1).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
    ):
        if lr < 0 or not 0 <= beta1 < 1 or not 0 <= beta2 < 1:
            raise ValueError(f"lr must be at least 0 and betas in [0, 1), not {lr}, {beta1} and {beta2}")
        settings = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # ignores closure
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, w.grad, group)

    def _update(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["beta1"], group["beta2"]
        state = self.state[w]
        if not state:
            state["step"] = 0
            state["m"], state["v"] = torch.zeros_like(w), torch.zeros_like(w)
        state["step"] += 1
        m = state["m"].lerp_(g, 1 - beta1) / (1 - beta1 ** state["step"])
        v = state["v"].mul_(beta2).addcmul_(g, g, value=1 - beta2) / (1 - beta2 ** state["step"])
        update = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * w
        weight_norm, update_norm = w.norm(), update.norm()
        ratio = torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
        w.sub_(update * (group["lr"] * ratio))
