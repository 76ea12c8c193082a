"""The interface between the training loop and its learners, and the optimizer step that learners share.

SharedWeights   N workers with one set of weights. A GradientSync computes the mean of their gradients.
ShardedWeights  N workers with one set of weights. The optimizer of each worker updates a part of the weights.
GossipWeights   N workers with separate weights, which they average with their neighbors after each step.
LocalWeights    N workers with separate weights, which they synchronize every H steps.

A sync names its learner (`cpdrun.comm.sync.base.GradientSync.learner`).

Shapes: N workers, W of them on this rank, B samples per worker, P parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cpdrun.comm.workers import Workers
from cpdrun.record.measure import Measure
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import Evaluation
from cpdrun.train.learners.gradients import Gradients
from cpdrun.train.precision.base import Precision
from cpdrun.whatif.collect.observer import Observer


class Learner(ABC):
    """The weights and the optimizer state of one run, on all ranks together.

    Attributes:
        parts: The parts of the run.
        shares_weights: Whether all workers have the same weights.
        loads_optimizer: Whether the learner steps with the optimizer of its parts, which may have a state already
            (`init_optimizer`).
        gradients_of: The object that computes the gradients of the workers of this rank.
        nonfinite: The number of inf and NaN in the gradients of the latest step. It is equal on all ranks and for any
            split of the workers.
        observer: The observer that collects statistics of steps. The training loop sets it.
        layers: The gradient statistics of the latest step with `look=True`, by parameter name.
    """

    parts: Parts
    shares_weights: ClassVar[bool] = True
    loads_optimizer: ClassVar[bool] = False
    gradients_of: Gradients
    nonfinite: int = 0
    observer: Observer
    layers: dict[str, dict[str, Any]]

    @abstractmethod
    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        """Start a run with the weights of `parts.model`."""

    @classmethod  # noqa: B027
    def check(cls, config: dict[str, Any], precision: Precision, sync: Any) -> None:
        """Raise ValueError if the settings do not work with this learner."""

    @abstractmethod
    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        """Take one optimizer step. Collective.

        Args:
            index_NxB: The sample indices of each worker.
            step: The step of the run, counted from 0.
            epoch: The epoch, counted from 0.
            lr_factor: The factor by which the learning rates of the optimizer are multiplied in this step.
            look: Whether to compute the gradient statistics in `layers`.

        Returns:
            The losses of this rank's workers, of shape (W,).
        """

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Evaluate on held-out data, with the same result on every rank. Collective."""

    def measures(self) -> dict[str, Measure]:
        """Return the measure of each metric of `evaluate` and of `train_loss`, by name."""
        task = self.parts.task
        return {"train_loss": task.measures["loss"]} | {
            f"test_{name}": m for name, m in task.measures.items()
        }

    def test_samples(self) -> int:
        """Return the number of test samples, such as images or sequences, that `evaluate` uses."""
        return len(self.parts.data.test)

    def memory(self) -> dict[str, int]:
        """Return the bytes of the model and of the optimizer of one worker, each value in its format."""
        return {}

    def topology(self) -> dict[str, float] | None:
        """Return properties of the graph of gossip: `neighbours`, the largest number, and `spectral_gap`.

        The result is None for learners without gossip.
        """
        return None

    def longest_chain(self) -> int | None:
        """Return the largest number of rounded additions that one gradient passes through, or None if unknown."""
        return None

    @abstractmethod
    def wire_bytes(self) -> dict[str, int]:
        """Return the bytes that the latest step sent, as `GradientSync.wire_bytes` counts them."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, for any later number of ranks. Complete on rank 0. Collective."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned on rank 0. Every rank must call this method."""

    @abstractmethod
    def weights_sha256(self) -> str:
        """Return a digest of all weights and buffers. Equal digests mean equal bits. Collective."""


def index_by_layer(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the rows of `GradientSync.statistics`, keyed by the name of the layer, which is removed from the rows."""
    return {row.pop("layer"): row for row in rows}


class OptimizerStep:
    """The step of one optimizer in the run's precision.

    Args:
        optimizer: The optimizer.
        parameters: Its parameters.
        precision: The precision, including the loss scale.
        clip_norm: The maximum norm of the gradient, or None.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        precision: Precision,
        clip_norm: float | None,
    ):
        self.optimizer, self.parameters, self.precision = optimizer, list(parameters), precision
        self.clip_norm = clip_norm
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]

    @property
    def scale(self) -> float:
        """The factor for the loss of the next gradient."""
        return self.precision.loss_scale.value

    def __call__(
        self,
        gradient: list[Tensor],
        nonfinite: int,
        lr_factor: float,
        correct: Callable[[list[Tensor]], None] | None = None,
    ) -> None:
        """Take a step, unless the loss scale rejects it. The gradient is changed in place.

        Args:
            gradient: The gradient of the scaled loss.
            nonfinite: The number of elements of the gradient that are not finite.
            lr_factor: The factor by which the learning rates are multiplied.
            correct: A function that changes the gradient in place between clipping and the step.
        """
        scale = self.scale
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * lr_factor
        if not self.precision.loss_scale.accept(nonfinite):
            self.precision.skip()
            return
        if scale != 1:
            torch._foreach_div_(gradient, scale)
        for parameter, g in zip(self.parameters, gradient, strict=True):
            parameter.grad = g
        if self.clip_norm is not None:
            self._clip(self.clip_norm)
        if correct is not None:
            correct(gradient)
        self.precision.step(self.optimizer, self.parameters)

    def _clip(self, clip_norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, clip_norm)

    def memory(self, model: nn.Module) -> dict[str, int]:
        """Return the bytes of the model and of the optimizer. Frozen parameters count as float32."""
        memory = self.precision.memory(self.optimizer, self.parameters)
        frozen = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
        return memory | {"model_bytes": memory["model_bytes"] + frozen}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"optimizer": self.optimizer.state_dict(), "precision": self.precision.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.precision.load_state_dict(state["precision"])
