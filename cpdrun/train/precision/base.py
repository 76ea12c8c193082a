"""The interface of a precision, which defines the number formats of a run's computation.

Formats   Weights, activations, errors, sums and optimizer steps in number formats that rules select.
Int8      Tensors with 2^bits levels.

Every precision has a loss scale. The loss is multiplied by it, and the gradient is divided by it, so that small
gradients are within the range of a format. The division is exact if the loss scale is a power of two.
"""

import copy
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

import torch
from custom_fp.formats.names import parse
from custom_fp.operators.dtensors import is_sharded
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from cpdrun.comm.compressors.bitpack import packed_bytes
from cpdrun.models.normed.norms import is_norm

Parameters = Sequence[nn.Parameter]

FIRST_DYNAMIC_SCALE = 2.0**16
GOOD_STEPS_TO_DOUBLE = 2000


class LossScale:
    """A constant loss scale.

    Attributes:
        value: The scale of the next loss.
        used: The scale of the latest accepted step.
    """

    def __init__(self, value: float):
        self.value = value
        self.used = value

    def accept(self, nonfinite: int) -> bool:
        """Return whether to take the step, given the number of gradient elements that are not finite."""
        self.used = self.value
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"loss_scale": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.value = state["loss_scale"]


class DynamicLossScale(LossScale):
    """The largest scale that keeps gradients finite (arXiv 1710.03740, section 3.2).

    A step whose gradient is not finite is skipped and halves the scale. 2,000 good steps in a row double it.
    """

    def __init__(self) -> None:
        super().__init__(FIRST_DYNAMIC_SCALE)
        self.good_steps = 0

    def accept(self, nonfinite: int) -> bool:
        """Update the scale and return whether to take the step."""
        self.used = self.value
        if nonfinite:
            self.value, self.good_steps = self.value / 2, 0
            return False
        self.good_steps += 1
        if self.good_steps == GOOD_STEPS_TO_DOUBLE:
            self.value, self.good_steps = self.value * 2, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"loss_scale": self.value, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.value, self.good_steps = state["loss_scale"], state["good_steps"]


def loss_scale_of(setting: float | str) -> LossScale:
    """Make the loss scale that the key precision.loss_scale sets.

    Raises:
        ValueError: The setting is neither a positive number nor "dynamic".
    """
    if setting == "dynamic":
        return DynamicLossScale()
    if not (isinstance(setting, int | float) and setting > 0):
        raise ValueError(f"precision.loss_scale must be a number above 0 or dynamic, not {setting}")
    return LossScale(float(setting))


def log2_of(setting: float | str) -> int:
    """Return the exponent of the power of two nearest to a setting of precision.loss_scale, at the start of the run."""
    return round(math.log2(loss_scale_of(setting).value))


class Precision:
    """The base class of precisions. It computes everything in float32, with a loss scale.

    Attributes:
        seed: The key of stochastic rounding. `build` sets it.
        steps: The number of steps of the run, which limits the steps of rules. `build` sets it.
        rounds_weights: The settings that round the weights between steps, as typed. Empty if weights are float32.
        rounds_products: The settings that round operands or sums of products, as typed. Empty if there are none.
        remembers: The settings that have a state between steps in addition to the weights, as typed. Empty if there are
            none.
        state_with_scales: The format of the optimizer's state if several of its elements share a scale, otherwise None.
        activation_bits: The bits per value of activations that are stored for the backward pass. None for float32.
    """

    seed: int = 0
    steps: int | None = None
    rounds_weights: str = ""
    rounds_products: str = ""
    remembers: str = ""
    state_with_scales: str | None = None
    activation_bits: int | None = None
    loss_scale: LossScale

    def __init__(self, loss_scale: float | str):
        self.loss_scale = loss_scale_of(loss_scale)

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return the model with this precision attached. Its parameters stay the same objects.

        Raises:
            ValueError: The model cannot compute in this precision.
        """
        return model

    def check(self, optimizer: Optimizer) -> None:
        """Raise ValueError if this optimizer cannot take steps in this precision."""

    def check_called(self, never_called: Collection[str] = ()) -> None:
        """Raise ValueError if the model calls none of the layers that a rule selects.

        Args:
            never_called: The names of the layers that rules select but that the model did not call.
        """

    def at(self, step: int) -> None:
        """Select the rules for the given step of the run, counted from 0."""

    def phase_starts(self) -> list[int]:
        """Return the steps at which the rules change, beginning with 0."""
        return [0]

    def step(self, optimizer: Optimizer, parameters: Parameters) -> None:
        """Take an optimizer step. Gradients are in `.grad`, already divided by the loss scale."""
        optimizer.step()

    def skip(self) -> None:
        """Update the state instead of a step that the loss scale rejected."""

    def memory(self, optimizer: Optimizer, parameters: Parameters) -> dict[str, int]:
        """Return the bytes that a machine with these formats would store from step to step.

        Returns:
            "model_bytes": weights and running statistics. "optimizer_bytes": the optimizer's state and copies of
            weights.
        """
        raise NotImplementedError

    def state_bytes(self, optimizer: Optimizer, parameters: Parameters) -> int:
        """Return the bytes of the optimizer's state of these parameters."""
        return sum(storage_bytes(v, None) for p in parameters for v in optimizer_state(optimizer, p))

    def copy_for_worker(self) -> Self:
        """Return a copy for a worker with its own optimizer. The prepared model is shared."""
        other = copy.copy(self)
        other.loss_scale = copy.deepcopy(self.loss_scale)
        return other

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self.loss_scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.loss_scale.load_state_dict(state)


def storage_bytes(tensor: Tensor, fmt: str | None) -> int:
    """Return the bytes of a tensor in the given format, or in float32 for None."""
    if fmt is None:
        return 4 * tensor.numel()
    if (parsed := parse(fmt)).has_scales:
        return parsed.packed_size(tensor.shape)
    return -(-tensor.numel() * parsed.code_bits // 8)


def get_gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter, which must have one."""
    assert parameter.grad is not None
    return parameter.grad


def optimizer_state(optimizer: Optimizer, parameter: nn.Parameter) -> list[Tensor]:
    """Return the floating-point tensors, such as momentum, in the optimizer's state for a parameter.

    Scalars, such as the step counter, are left out. For a sharded tensor, the local shard is returned.
    """
    values = tree_leaves(optimizer.state.get(parameter, {}))
    found = [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.dim() > 0]
    return [v.to_local() if is_sharded(v) else v for v in found]


def activation_bytes(model: nn.Module, forward: Callable[[], object], bits: int | None) -> int:
    """Return the bytes of activations that a batch stores between its forward and its backward pass.

    These are the inputs of Linear, Conv2d and normalization layers, which are needed again to compute gradients. A
    value that is the input of two layers counts twice. The mode of the model is restored.

    Args:
        model: The model.
        forward: A function that calls the model with a batch.
        bits: The number of bits per value, or None for float32.
    """
    total = 0

    def count(_module: nn.Module, inputs: tuple) -> None:
        nonlocal total
        total += packed_bytes(inputs[0].numel(), bits or 32)

    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d) or is_norm(m)]
    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            forward()
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return total
