"""Outer steps: workers train on their own, then what they moved is averaged and an outer optimizer steps by it.

DiLoCo (Douillard et al., arXiv 2311.08105, algorithm 1), per parameter, with N workers, H inner steps, the weights x
that all agreed on last and x_w, where worker w went from there by H steps of an optimizer of its own:

    d_w = (x - x_w) / N                  its pseudo-gradient
    d = the exchange's sum of d_w        a Sum in a format, or compressed messages, with error feedback or without
    v = momentum * v + d                 v = 0 at first
    x = x - lr * (d + momentum * v)      nesterov; x - lr * v without it

and every x_w goes on from x; the state of its inner optimizer, and its buffers (BatchNorm), stay its own. lr = 1 and no
momentum: x is the mean of x_w, local SGD (Stich, arXiv 1805.09767, algorithm 1).

What differs: d_w is divided by N before it is rounded or compressed, as gradients are in data parallelism; after the
run's last step there is an outer step whatever H is.

Legend: N workers, W of them on this rank, P parameters. inf and NaN of a worker's weights spread to all at the outer
step, as far as the exchange's format has them; those that it makes numbers of are counted.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpdrun.comm.base import GradientSync


class OuterStep:
    """The weights that all workers agree on, and what moves them.

    exchange: forms the sum of pseudo-gradients; its `world_size` workers are those that train. Raises ValueError for
    settings out of range. `learner`: as `GradientSync.learner`.
    """

    learner = "cpdrun.train.learners.separate_weights.LocalWeights"

    def __init__(
        self,
        exchange: GradientSync,
        *,
        world_size: int,
        inner_steps: int,
        outer_lr: float,
        outer_momentum: float,
        nesterov: bool,
    ) -> None:
        if isinstance(inner_steps, bool) or not (isinstance(inner_steps, int) and inner_steps >= 1):
            raise ValueError(f"inner_steps={inner_steps}: must be a whole number, at least 1")
        if not (_is_number(outer_lr) and outer_lr > 0):
            raise ValueError(
                f"outer_lr={outer_lr}: must be a number above 0; 1 without momentum is averaging"
            )
        if not (_is_number(outer_momentum) and 0 <= outer_momentum < 1):
            raise ValueError(f"outer_momentum={outer_momentum}: must be at least 0 and below 1")
        if not isinstance(nesterov, bool):
            raise ValueError(f"nesterov={nesterov}: choose true or false")
        self.exchange, self.world_size, self.inner_steps = exchange, world_size, inner_steps
        # torch's SGD has no nesterov without momentum, where both are the same step
        self._settings = {
            "lr": outer_lr,
            "momentum": outer_momentum,
            "nesterov": nesterov and outer_momentum > 0,
        }
        self.exchanged = False  # whether the latest step was an outer one

    @property
    def longest_chain(self) -> int | None:
        return self.exchange.longest_chain

    @property
    def nonfinite(self) -> int:
        """As `GradientSync.nonfinite`, of the pseudo-gradients; 0 after a step without an exchange."""
        return self.exchange.nonfinite if self.exchanged else 0

    def begin(self, start_P: Sequence[Tensor]) -> None:
        """Before the first step, with the weights that all workers start from, the same on every rank: copied."""
        weights = [x.detach().to(torch.float32, copy=True).contiguous() for x in start_P]
        self.agreed = [nn.Parameter(x, requires_grad=False) for x in weights]
        self.optimizer = torch.optim.SGD(self.agreed, **self._settings)

    def is_due(self, step: int) -> bool:
        """Whether inner step `step`, counted from 0, is followed by an outer one."""
        return (step + 1) % self.inner_steps == 0

    def pseudo_gradients(self, x_PxW: Sequence[Tensor]) -> list[Tensor]:
        """d_w as it is before the exchange: (W, ...) float32 of each parameter; x_PxW: (W, ...) of any float dtype.

        Weights of fewer bits started from agreed weights that were rounded to them, and are compared with those.
        """
        return [
            (agreed.to(x_W.dtype).float() - x_W.detach().float()).div_(self.world_size)
            for agreed, x_W in zip(self.agreed, x_PxW, strict=True)
        ]

    @torch.no_grad()
    def after_step(
        self, x_PxW: Sequence[Tensor], *, step: int, epoch: int, last: bool = False
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        """After inner step `step`: where an outer step is due, or it is the run's `last`, every x_w becomes the new
        agreed weights, in place. Returns what was exchanged, pseudo-gradients and their sum; None without. Collective.
        """
        self.exchanged = last or self.is_due(step)
        if not self.exchanged:
            return None
        stacks = self.pseudo_gradients(x_PxW)
        mean = self.exchange.reduce_stacked(stacks, step=step, epoch=epoch)
        for agreed, d in zip(self.agreed, mean, strict=True):
            agreed.grad = d
        self.optimizer.step()
        for agreed, x_W in zip(self.agreed, x_PxW, strict=True):
            agreed.grad = None  # the exchange may reuse its memory
            x_W.copy_(agreed)
        return stacks, mean

    def wire_bytes(self) -> dict[str, int]:
        """As `GradientSync.wire_bytes`: of the latest step, 0 where it was no outer one. The mean over all steps is an
        outer step's bytes / H."""
        of_exchange = self.exchange.wire_bytes()
        return of_exchange if self.exchanged else dict.fromkeys(of_exchange, 0)

    def memory_bytes(self) -> int:
        """What a worker keeps beside its weights: the agreed ones, and outer momentum."""
        momentum = 4 if self._settings["momentum"] else 0
        return (4 + momentum) * sum(agreed.numel() for agreed in self.agreed)

    def state_dict(self) -> dict[str, Any]:
        """What the next outer steps depend on, beside the workers' weights; whole on rank 0. Collective."""
        return {
            "agreed": [agreed.detach().clone() for agreed in self.agreed],
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "exchange": self.exchange.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave on rank 0, on every rank; after `begin`."""
        for agreed, kept in zip(self.agreed, state["agreed"], strict=True):
            agreed.copy_(kept)
        self.optimizer.load_state_dict(state["optimizer"])
        self.exchange.load_state_dict(state["exchange"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
