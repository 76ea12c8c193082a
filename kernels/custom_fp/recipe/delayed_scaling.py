"""Delayed scaling: the scale of a tensor is determined by the largest magnitudes of previous steps.

    amax = the largest max|x| of the last H steps;   x -> Q(min(max(x, -amax), amax)) with the scale for amax

A tensor therefore need not be read before it is rounded. TransformerEngine's DelayedScaling does the same and keeps
1,024 steps. In the first step, amax is computed from x itself. Values beyond amax saturate. An infinity or NaN makes
the whole tensor NaN, as it does without a history, and is not recorded in the history.

Each operand of each layer has its own history, which all workers of a step share. At the end of the step, all processes
of torch.distributed agree on the largest magnitude that any worker has computed, and add it to the history. The result
therefore does not depend on how workers are distributed over processes.
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
from custom_fp.recipe.quantization_spec import QuantizationSpec


class History:
    """The history of the largest magnitudes of one operand.

    Attributes:
        values: The largest magnitudes of the last steps as float32, the latest one first.
        seen: The largest magnitude of the current step so far (0-d).
    """

    def __init__(self, length: int) -> None:
        self.values, self.seen = torch.zeros(length), torch.zeros(())

    def record(self, x: Tensor) -> Tensor:
        """Return amax for x (0-d), and record x for the next step."""
        self.to(x.device)
        own = largest_magnitude(x)
        self.seen.copy_(torch.maximum(self.seen, own))
        return self.amax(own)

    def amax(self, own: Tensor) -> Tensor:
        """Return the largest magnitude of the last steps, or `own` if nothing was recorded yet."""
        before = self.values.max()
        return torch.where(before > 0, before, own)

    def to(self, device: torch.device) -> None:
        """Move the history to a device."""
        if self.values.device != device:
            self.values, self.seen = self.values.to(device), self.seen.to(device)


def largest_magnitude(x: Tensor) -> Tensor:
    """Return max|x| over the finite elements as a 0-d float32 tensor, or 0 if there are none."""
    if x.numel() == 0:
        return x.new_zeros((), dtype=torch.float32)
    return torch.where(x.isfinite(), x, 0.0).abs().amax().float()


@dataclass(frozen=True)
class Delayed:
    """A rounding to a format with a single scale for the tensor, which is determined by a history.

    Attributes:
        rounding: The format and the rounding mode.
        history: The history of the operand.
        records: Whether the history records the tensors that are rounded, as it does in training.
    """

    rounding: QuantizationSpec
    history: History
    records: bool = True
    has_axis: bool = False
    has_tiles: bool = False

    @torch.compiler.disable(reason="a history changes as it is read")
    def __call__(self, x: Tensor) -> Tensor:
        return _StraightThrough.apply(x, self)

    def quantize(self, x: Tensor) -> Tensor:
        """Return the rounded tensor, without a gradient."""
        x = x.detach()
        self.history.to(x.device)
        amax = self.history.record(x) if self.records else self.history.amax(largest_magnitude(x))
        x = torch.where(x.isinf(), x.float(), torch.minimum(torch.maximum(x.float(), -amax), amax))
        # amax is appended as the largest element, so it determines the scale.
        with_amax = torch.cat([x.reshape(-1), amax.reshape(1)])
        return ops.quantize(with_amax, self.rounding.format, rounding=self.rounding.rounding_mode)[:-1].view(
            x.shape
        )

    @property
    def nearest(self) -> Delayed:
        """The rounding for evaluation, which is not stochastic and does not record tensors."""
        if not self.records and not self.rounding.is_stochastic:
            return self
        return Delayed(self.rounding.nearest, self.history, records=False)

    def __str__(self) -> str:
        return f"{self.rounding} (history {len(self.history.values)})"


class _StraightThrough(torch.autograd.Function):
    """An autograd function whose gradient passes straight through."""

    @staticmethod
    def forward(x: Tensor, rounding: Delayed) -> Tensor:
        return rounding.quantize(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, rounding: Delayed) -> tuple:
        raise RuntimeError(
            "delayed scaling does not work under vmap, because it depends on the order in which tensors are processed"
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return grad.to(ctx.dtype), None


def roll(histories: Collection[History]) -> None:
    """End a step: append its largest magnitude to each history. If there are several processes, all must call this."""
    if not histories:
        return
    seen = torch.stack([history.seen.to(next(iter(histories)).seen.device) for history in histories])
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(seen, dist.ReduceOp.MAX)
    for history, magnitude in zip(histories, seen, strict=True):
        history.values = torch.cat([magnitude.to(history.values.device).view(1), history.values[:-1]])
        history.seen = torch.zeros_like(history.seen)


class Histories:
    """The histories of one model. A deep copy of the model gets a deep copy of the histories, with its own owners.

    Attributes:
        by_operand: The histories by LAYER:ROLE.
        owners: The model and its layers that have a history.
        follows_optimizers: Whether each step of an optimizer ends a step of the histories.
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
        """End a step of all histories."""
        roll(self.by_operand.values())

    def follow_optimizers(self) -> None:
        """From now on, end a step after each step of a torch.optim optimizer that updates an owner's parameters."""
        self.follows_optimizers = True
        _watch_optimizers()
        _following[next(_numbers)] = self

    def is_updated_by(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer updates a parameter of an owner."""
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return any(id(p) in updated for owner in self.owners for p in owner.parameters())


_numbers = itertools.count()
_following: WeakValueDictionary[int, Histories] = WeakValueDictionary()
"""Histories by the order of their creation. All ranks call the collective `roll` in this order, which they share."""


@functools.cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for _number, histories in sorted(_following.items()):
        if histories.is_updated_by(optimizer):
            histories.roll()
