"""LARS: a learning rate for every layer (You, Gitman and Ginsburg, arXiv 1708.03888, algorithm 1).

For a layer with weights w, gradient g and weight decay d,

    trust = coefficient * |w| / (|g| + d |w|)
    v     = momentum * v + lr * trust * (g + d w)
    w     = w - v

As there, momentum keeps past steps with the lr they were taken with. What differs: layers of one dimension
(biases, norms) may be left to plain SGD without decay, as later recipes do (adapt_1d=false). A layer whose gradient
is zero has trust 1, one whose weights are zero `trust_of_zeros`: by the formula it is 0, and a bias that begins at
zero stays there, which is how the APS authors' code for arXiv 1911.08907 has it (github.com/drcut/CPD, mix.py).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class LARS(torch.optim.Optimizer):
    """float32 parameters of any shape; `coefficient` is the paper's eta."""

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
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, w.grad, group)

    def _update(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        decay, trust = group["weight_decay"], 1.0
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
