"""Delayed scaling: a tensor's scale by the largest magnitudes of the steps before.

    amax = the largest of the last H steps' max|x|;   x -> Q(min(max(x, -amax), amax)) under the scale that amax gives

so that x need not be read before it is rounded, as TransformerEngine's DelayedScaling has it, which keeps 1,024 steps.
In the first step, which has none before, amax is x's own. What is past amax saturates; inf and NaN make all of a tensor
NaN, as its format has it, and take no part in a history.

A history is of one operand of one layer. The workers of a step are rounded by the same one; at its end what they have
seen is agreed on by all processes of torch.distributed, and so enters it: the same for any split of workers.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from custom_fp import ops
from custom_fp.recipe.rounding import Rounding


class History:
    """values: the largest magnitudes of the last steps, float32; seen: that of this step so far."""

    def __init__(self, length: int) -> None:
        self.values, self.seen = torch.zeros(length), torch.zeros(())

    def note(self, x: Tensor) -> Tensor:
        """amax for x, 0-d. x takes part in the history from the next step on."""
        self.to(x.device)
        own = largest(x)
        self.seen.copy_(torch.maximum(self.seen, own))
        return self.amax(own)

    def amax(self, own: Tensor) -> Tensor:
        before = self.values.max()
        return torch.where(before > 0, before, own)

    def to(self, device: torch.device) -> None:
        if self.values.device != device:
            self.values, self.seen = self.values.to(device), self.seen.to(device)


def largest(x: Tensor) -> Tensor:
    """max|x| over what is finite, 0-d float32; 0 where there is none."""
    if x.numel() == 0:
        return x.new_zeros((), dtype=torch.float32)
    return torch.where(x.isfinite(), x, 0.0).abs().amax().float()


@dataclass(frozen=True)
class Delayed:
    """A rounding to a format with one scale for the tensor, by a history. notes: whether it adds to it, in training."""

    rounding: Rounding
    history: History
    notes: bool = True
    has_axis: bool = False
    has_tiles: bool = False

    @torch.compiler.disable(reason="a history changes as it is read")
    def __call__(self, x: Tensor) -> Tensor:
        return _Through.apply(x, self)

    def rounded(self, x: Tensor) -> Tensor:
        x = x.detach()
        self.history.to(x.device)
        amax = self.history.note(x) if self.notes else self.history.amax(largest(x))
        x = torch.where(x.isinf(), x.float(), torch.minimum(torch.maximum(x.float(), -amax), amax))
        together = torch.cat([x.reshape(-1), amax.reshape(1)])  # of which amax is the largest
        return ops.quantize(together, self.rounding.format, rounding=self.rounding.word)[:-1].view(x.shape)

    @property
    def nearest(self) -> Delayed:
        """As layers that are evaluated round: nothing is drawn, and nothing enters the history."""
        if not self.notes and not self.rounding.is_stochastic:
            return self
        return Delayed(self.rounding.nearest, self.history, notes=False)

    def __str__(self) -> str:
        return f"{self.rounding} (history {len(self.history.values)})"


class _Through(torch.autograd.Function):
    """The gradient passes straight through."""

    @staticmethod
    def forward(x: Tensor, rounding: Delayed) -> Tensor:
        return rounding.rounded(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, rounding: Delayed) -> tuple:
        raise RuntimeError("a delayed scale follows one tensor after another")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return grad.to(ctx.dtype), None


def roll(histories: Collection[History]) -> None:
    """The end of a step: what it has seen enters each history. Collective, where there are several processes."""
    if not histories:
        return
    seen = torch.stack([history.seen.to(next(iter(histories)).seen.device) for history in histories])
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(seen, dist.ReduceOp.MAX)
    for history, of_step in zip(histories, seen, strict=True):
        history.values = torch.cat([of_step.to(history.values.device).view(1), history.values[:-1]])
        history.seen = torch.zeros_like(history.seen)


def roll_with_steps(model: nn.Module, histories: Collection[History]) -> None:
    """From here on a step of any of torch's optimizers that holds a parameter of the model is the end of a step."""
    of_model = weakref.ref(model)

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        # once the model is gone this stays, and does nothing: torch goes through its hooks meanwhile
        alive = of_model()
        mine = {id(p) for p in alive.parameters()} if alive is not None else ()
        if any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
            roll(histories)

    register_optimizer_step_post_hook(stepped)
