"""Quasi-global momentum (Lin, Karimireddy, Stich and Jaggi, arXiv 2102.04761, algorithm 1, QG-DSGDm): momentum of what
the neighbourhood does.

A step takes g + beta m in place of g, without momentum of the optimizer's own, and after the gossip of round t
m = mu m + (1 - mu) (x_t - x_{t+1}) / lr, with mu = beta. What differs: a round whose learning rate is 0 leaves m.

nesterov (its QG-DSGDm-N, which Aketi, Kodge and Roy, arXiv 2111.09389, train with): with d = g + weight decay of x, a
step takes d + beta (beta m + d).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cpdrun.comm.gossip.rows import Rows


class QuasiGlobalMomentum:
    """Of the W workers of this rank. Raises ValueError for a beta out of range."""

    def __init__(self, beta: float, nesterov: bool) -> None:
        if not 0 < beta < 1:
            raise ValueError(f"sync.quasi_global_momentum must lie between 0 and 1 or be null, not {beta}")
        self.beta, self.nesterov = beta, nesterov

    def begin(self, rows: Rows, x_WxD: Tensor) -> dict[str, Tensor]:
        """What a checkpoint must keep, by name."""
        self.momentum_WxD, self.before_WxD = torch.zeros_like(x_WxD), torch.zeros_like(x_WxD)
        self._momenta = [rows.parameters(row) for row in self.momentum_WxD]
        return {"momentum": self.momentum_WxD, "before": self.before_WxD}

    def before_step(self, x_WxD: Tensor) -> None:
        self.before_WxD.copy_(x_WxD)

    def correct(self, i: int, gradient_P: Sequence[Tensor], decay_P: Sequence[Tensor]) -> None:
        """Changes the gradient of my i-th worker in place."""
        if not self.nesterov:
            torch._foreach_add_(list(gradient_P), self._momenta[i], alpha=self.beta)
            return
        ahead_P = torch._foreach_mul(self._momenta[i], self.beta)
        torch._foreach_add_(ahead_P, list(gradient_P))
        if decay_P:
            torch._foreach_add_(ahead_P, list(decay_P))
        torch._foreach_add_(list(gradient_P), ahead_P, alpha=self.beta)

    def after_gossip(self, x_WxD: Tensor, lr: float) -> None:
        if lr:
            for m_D, before_D, x_D in zip(self.momentum_WxD, self.before_WxD, x_WxD, strict=True):
                moved_D = torch.sub(before_D, x_D).div_(lr)
                m_D.mul_(self.beta).add_(moved_D, alpha=1 - self.beta)
