"""LARS: a learning rate for each layer (You, Gitman and Ginsburg, arXiv 1708.03888, algorithm 1).

For a layer with weights w, gradient g and weight decay d,

    trust = coefficient * |w| / (|g| + d |w|)
    v     = momentum * v + lr * trust * (g + d w)
    w     = w - v

As in the paper, each gradient enters the momentum with the learning rate of its own step.

Differences from the paper: layers with one dimension (biases, norms) may use plain SGD without weight decay, as in
later recipes (adapt_1d=false). If the gradient of a layer is zero, its trust is 1. If its weights are zero, its trust
is `trust_of_zeros`. The formula gives 0, with which a bias that starts at zero never changes. The code of the APS
authors for arXiv 1911.08907 does this (github.com/drcut/CPD, mix.py).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class LARS(torch.optim.Optimizer):
    """LARS.

    Args:
        params: float32 parameters of any shape, or parameter groups.
        lr: The learning rate.
        momentum: The momentum.
        weight_decay: The weight decay d.
        coefficient: The trust coefficient, eta in the paper.
        adapt_1d: Whether layers with one dimension have a trust and weight decay.
        trust_of_zeros: The trust of a layer whose weights are all zero.

    Raises:
        ValueError: The learning rate is negative, or the coefficient is not positive.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float,
        weight_decay: float,
        coefficient: float,
        adapt_1d: bool,
        trust_of_zeros: float,
    ):
        if lr < 0 or coefficient <= 0:
            raise ValueError(f"lr must be at least 0 and coefficient above 0, not {lr} and {coefficient}")
        settings = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "coefficient": coefficient,
            "adapt_1d": adapt_1d,
            "trust_of_zeros": trust_of_zeros,
        }
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # ignores closure
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, w.grad, group)

    def _update(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        decay = group["weight_decay"]
        trust: float | Tensor = 1.0
        if w.dim() > 1 or group["adapt_1d"]:
            weight_norm, gradient_norm = w.norm(), g.norm()
            scaled = group["coefficient"] * weight_norm / (gradient_norm + decay * weight_norm)
            trust = torch.where(weight_norm > 0, scaled, group["trust_of_zeros"])
            trust = torch.where(gradient_norm > 0, trust, 1.0)
        else:
            decay = 0.0
        state = self.state[w]
        if not state:
            state["velocity"] = torch.zeros_like(w)
        velocity = state["velocity"].mul_(group["momentum"])
        velocity.add_((g + decay * w) * (group["lr"] * trust))
        w.sub_(velocity)
