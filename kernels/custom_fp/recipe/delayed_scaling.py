"""Delayed scaling: the scale of a tensor is determined by the largest magnitudes of previous steps.

    amax = the largest max|x| of the last H steps;   x -> Q(min(max(x, -amax), amax)) with the scale for amax

The scale is therefore known before the tensor is read. TransformerEngine's DelayedScaling does the same and keeps 1,024
steps. If no previous step has recorded a positive magnitude, as in the first step, amax is computed from x itself.
Values beyond amax saturate. If x has an infinity or NaN, the whole result is NaN, as it is without a history. Only
finite magnitudes are recorded.

Each operand of each layer has its own history, which all workers share. A step begins when a forward pass in training
mode records the first tensor after the previous step. It ends when an optimizer that updates the model takes a step:

- All forward and backward passes before this step of the optimizer belong to one step (gradient accumulation). They use
  the same amax, except in the first step.
- If several optimizers update the model one after the other, the first one ends the step. The others have no effect,
  because nothing was recorded in between.
- If an optimizer steps during a backward pass, as in a hook that updates each parameter when its gradient is complete,
  the step ends with this backward pass.

At the end of a step, all processes of torch.distributed compute the largest magnitude that any worker has recorded, and
add it to the history. The result therefore does not depend on how workers are distributed over processes. All processes
take part in this all_reduce after every step of an optimizer that updates the model, even if they recorded nothing.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from custom_fp.operators import table as operators
from custom_fp.recipe.quantization_spec import QuantizationSpec

NOTHING = -1.0  # placeholder for a step with no recorded magnitude


class History:
    """The largest magnitudes of one operand in the last steps. Deep copies and unpickled copies have their own tensors.

    Attributes:
        magnitudes: A float32 tensor of shape (1 + steps,). The first element is the largest magnitude of the current
            step so far, or NOTHING. The others are the largest magnitudes of the last steps, the latest one first. The
            operator quantize_delayed updates this tensor in place.
    """

    def __init__(self, length: int, device: torch.device | None = None) -> None:
        self.magnitudes = torch.zeros(1 + length, device="cpu")
        self.magnitudes[0] = NOTHING
        if device is not None:
            self.to(device)

    def __deepcopy__(self, memo: dict[int, Any]) -> History:
        copied = memo[id(self)] = object.__new__(History)
        copied.magnitudes = self.magnitudes.clone()
        return copied

    def __getstate__(self) -> dict[str, Any]:
        # A tensor sent to another process shares its memory with the sender. A NumPy array is copied instead.
        return {"magnitudes": self.magnitudes.numpy(force=True)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.magnitudes = torch.tensor(state["magnitudes"], device="cpu")

    @property
    def seen(self) -> Tensor:
        """The largest magnitude so far in the current step, or NOTHING if there is none, as a 0-d tensor."""
        return self.magnitudes[0]

    @property
    def values(self) -> Tensor:
        """The largest magnitudes of the last steps, the latest one first."""
        return self.magnitudes[1:]

    def load(self, values: Tensor) -> None:
        """Replace the largest magnitudes of the last steps, and begin a new step."""
        self.values.copy_(values)
        self.seen.fill_(NOTHING)

    def append(self, magnitude: Tensor) -> None:
        """Add the largest magnitude of a step, a 0-d tensor, drop the oldest one, and begin a new step."""
        self.load(torch.cat([magnitude.clamp(min=0).view(1).to(self.magnitudes.device), self.values[:-1]]))

    def to(self, device: torch.device) -> None:
        """Move the history to a device. The meta device is ignored, because its tensors have no values."""
        if self.magnitudes.device != device and device.type != "meta":
            self.magnitudes = self.magnitudes.to(device)


@dataclass(frozen=True)
class Delayed:
    """A function that rounds a tensor to a format with a single scale, which is computed from a history.

    Attributes:
        rounding: The format and the rounding mode.
        history: The history of the operand.
        records: Whether rounding a tensor records its largest magnitude in the history, as in training.
    """

    rounding: QuantizationSpec
    history: History
    records: bool = True
    has_axis: bool = False
    has_tiles: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        history, spec = self.history, self.rounding
        if not torch.compiler.is_compiling():  # a compiled backward pass cannot assign history.magnitudes
            history.to(x.device)
        return operators.quantize_delayed(
            x, history.magnitudes, spec.format, spec.rounding_mode, self.records
        )

    @property
    def nearest(self) -> Delayed:
        """The rounding for evaluation, which is not stochastic and records no magnitudes."""
        if not self.records and not self.rounding.is_stochastic:
            return self
        return Delayed(self.rounding.nearest, self.history, records=False)

    def __str__(self) -> str:
        return f"{self.rounding} (history {len(self.history.values)})"


def roll(histories: Collection[History]) -> None:
    """End the current step by adding its largest magnitude to each history.

    If no process has recorded a magnitude, the step continues. If there are several processes, all of them must call
    this function, because it calls all_reduce.
    """
    if not histories:
        return
    device = next(iter(histories)).magnitudes.device
    seen = torch.stack([history.seen.to(device) for history in histories])
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(seen, dist.ReduceOp.MAX)
    if seen.max() == NOTHING:
        return
    for history, magnitude in zip(histories, seen, strict=True):
        history.append(magnitude)


class Histories:
    """The histories of one model. A deep copy of the model gets its own deep copy of the histories.

    Attributes:
        by_operand: Maps each operand, written as LAYER:ROLE, to its history.
        owners: The model and its rounded layers.
        follows_optimizers: Whether a step of an optimizer ends the current step of the histories.
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

    def history(self, operand: str, length: int, device: torch.device | None) -> History:
        """Return the history of an operand.

        If rules specify different history lengths, a separate history is kept for each length.
        """
        history = self.by_operand.setdefault(operand, History(length, device))
        if len(history.values) == length:
            return history
        return self.by_operand.setdefault(f"{operand}:{length}", History(length, device))

    def state_dict(self) -> dict[str, Tensor]:
        """Return a dict that maps each operand to the largest magnitudes of the last steps."""
        return {key: history.values.clone() for key, history in self.by_operand.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the magnitudes that `state_dict` returned.

        Raises:
            ValueError: If the operands in the state, or the lengths of their histories, differ from those of the model.
        """
        expected = {key: len(history.values) for key, history in self.by_operand.items()}
        found = {key: len(values) for key, values in state.items()}
        for key in [*expected, *found]:
            if expected.get(key) != found.get(key):
                stored, kept = _steps(found.get(key)), _steps(expected.get(key))
                raise ValueError(
                    f"the state has {stored} of {key}, but the recipe keeps {kept}; load the state into the same model "
                    "with the same recipe"
                )
        for key, values in state.items():
            self.by_operand[key].load(values)

    def to(self, device: torch.device) -> None:
        """Move all histories to a device."""
        for history in self.by_operand.values():
            history.to(device)

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


def _steps(count: int | None) -> str:
    return "no history" if count is None else f"a history of {count} steps"


_numbers = itertools.count()
_following: WeakValueDictionary[int, Histories] = WeakValueDictionary()
"""The histories that follow optimizers, numbered in the order of their creation.

`roll` is a collective operation. All ranks create histories in the same order, and call `roll` in this order.
"""
_ending: set[int] = set()
"""The numbers of the histories whose step ends with the current backward pass."""


@functools.cache
def _watch_optimizers() -> None:
    # disable() is called here, not as a decorator, because it imports torch._dynamo, which takes more than a second.
    reason = "an optimizer's step ends a step of histories"
    register_optimizer_step_post_hook(torch.compiler.disable(_after_step, reason=reason))


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    updated = [number for number, histories in _following.items() if histories.is_updated_by(optimizer)]
    if torch._C._current_graph_task_id() == -1:
        _end_step(updated)
    elif updated:
        if not _ending:
            Variable._execution_engine.queue_callback(_end_backward)
        _ending.update(updated)


def _end_backward() -> None:
    ending = sorted(_ending)
    _ending.clear()
    _end_step(ending)


def _end_step(numbers: Iterable[int]) -> None:
    for number in sorted(numbers):
        if histories := _following.get(number):
            histories.roll()
