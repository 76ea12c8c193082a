"""Delayed scaling: a tensor's scale by the largest magnitudes of the steps before.

    amax = the largest of the last H steps' max|x|;   x -> Q(min(max(x, -amax), amax)) under the scale that amax gives

so that x need not be read before it is rounded, as TransformerEngine's DelayedScaling has it, which keeps 1,024 steps.
In the first step, which has none before, amax is x's own. What is past amax saturates; inf and NaN make all of a tensor
NaN, as its format has it, and take no part in a history.

A history is of one operand of one layer. The workers of a step are rounded by the same one; at its end what they have
seen is agreed on by all processes of torch.distributed, and so enters it: the same for any split of workers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet, WeakValueDictionary

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


class Histories:
    """The histories of one model. A deep copy of the model gets a deep copy of them, with owners of its own.

    Attributes:
        by_operand: The histories, by LAYER:ROLE.
        owners: The model and its layers that have a history.
    """

    def __init__(self) -> None:
        self.by_operand: dict[str, History] = {}
        self.owners: WeakSet[nn.Module] = WeakSet()
        self.follows_optimizers = False

    def __getstate__(self) -> dict[str, Any]:
        return {"by_operand": self.by_operand, "follows": self.follows_optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.by_operand = state["by_operand"]
        if state["follows"]:
            self.follow_optimizers()

    def roll(self) -> None:
        roll(self.by_operand.values())

    def follow_optimizers(self) -> None:
        """Roll after each step of an optimizer of torch.optim that holds a parameter of an owner."""
        self.follows_optimizers = True
        _watch_optimizers()
        _following[next(_numbers)] = self

    def is_moved_by(self, optimizer: Optimizer) -> bool:
        moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return any(id(p) in moved for owner in self.owners for p in owner.parameters())


_numbers = itertools.count()
_following: WeakValueDictionary[int, Histories] = WeakValueDictionary()
"""Histories by the order in which they were made, which is the same on every rank: rolling is collective."""


@functools.cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for _, histories in sorted(_following.items()):
        if histories.is_moved_by(optimizer):
            histories.roll()
