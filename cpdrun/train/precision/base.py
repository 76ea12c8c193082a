"""The numbers that one run computes with, behind one interface: what the learners call.

Formats   weights, activations, errors, sums and steps in number formats, by rules
Int8      tensors of 2^bits levels
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from custom_fp.formats.names import parse
from torch import Tensor, nn
from torch.optim import Optimizer

from cpdrun.train.precision.loss_scale import LossScale, loss_scale_of

Parameters = Sequence[nn.Parameter]


@dataclass(frozen=True)
class Operands:
    """Formats, by name: of the two values that a product multiplies and of its sums."""

    a: str = "fp32"
    b: str = "fp32"
    accumulator: str = "fp32"


class Precision:
    """All in float32, but for the loss scale; a precision of its own says what is not."""

    seed: int = 0
    """Keys stochastic rounding; set by whoever builds the run."""

    steps: int | None = None
    """Of the run, so that rules of later ones are refused; set by whoever builds it."""

    rounds_weights: str = ""
    """What rounds the weights between steps, as it is typed; empty where they are float32."""

    rounds_products: str = ""
    """What rounds operands or sums of products, as it is typed; empty where nothing does."""

    remembers: str = ""
    """What goes from step to step beside weights, as it is typed; empty where nothing does."""

    state_with_scales: str | None = None
    """The format of the optimizer's state, where several elements of it share a scale."""

    activation_bits: int | None = None
    """Of what a batch leaves for the backward pass; None: float32."""

    loss_scale: LossScale

    def __init__(self, loss_scale: float | str):
        self.loss_scale = loss_scale_of(loss_scale)

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model as it computes in this precision, parameters the same objects. ValueError where it cannot."""
        return model

    def check(self, optimizer: Optimizer) -> None:
        """ValueError where the steps of this optimizer cannot be taken in this precision."""

    def check_called(self) -> None:
        """Once the model has been called: ValueError for what only then shows that it rounds nothing."""

    def at(self, step: int) -> None:
        """From here on the model computes as it does in this step of the run, counted from 0."""

    def turns(self) -> list[int]:
        """Steps of the run from which other rules hold; 0 among them."""
        return [0]

    def operands(self, name: str, part: str | None, product: str, step: int) -> Operands:
        """What one of the products (custom_fp.layers.products) of the module `name`, or of a part of its attention,
        reads and sums up in, from that step on."""
        return Operands()

    def step(self, optimizer: Optimizer, parameters: Parameters) -> None:
        """One optimizer step. Gradients are in `.grad`, divided by the loss scale."""
        optimizer.step()

    def skip(self) -> None:
        """Instead of a step that the loss scale refused."""

    def memory(self, optimizer: Optimizer, parameters: Parameters) -> dict[str, int]:
        """Bytes that a machine with these numbers would keep from step to step.

        model_bytes: weights and running statistics. optimizer_bytes: the optimizer's state and copies of weights.
        """
        raise NotImplementedError

    def state_bytes(self, optimizer: Optimizer, parameters: Parameters) -> int:
        """Of what the optimizer keeps of these parameters."""
        return sum(kept_bytes(v, None) for p in parameters for v in state_of(optimizer, p))

    def of_worker(self) -> Self:
        """The same for a worker with an optimizer of its own, once the model that all play is prepared."""
        other = copy.copy(self)
        other.loss_scale = copy.deepcopy(self.loss_scale)
        return other

    def state_dict(self) -> dict[str, Any]:
        return self.loss_scale.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss_scale.load_state_dict(state)


def kept_bytes(tensor: Tensor, fmt: str | None) -> int:
    """Of the tensor in a format, None: float32."""
    if fmt is None:
        return 4 * tensor.numel()
    if (parsed := parse(fmt)).has_scales:
        return parsed.packed_size(tensor.shape)
    return -(-tensor.numel() * parsed.bits // 8)


def state_of(optimizer: Optimizer, parameter: nn.Parameter) -> list[Tensor]:
    """Momentum and the like: what the optimizer keeps for each element of a parameter."""
    values = optimizer.state.get(parameter, {}).values()
    return [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.dim() > 0]
