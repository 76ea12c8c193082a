"""What learns in the training loop, behind one interface: what the loop calls, and nothing of how it is done.

SharedWeights   N workers, one set of weights: the mean of their gradients, formed by a GradientSync, moves it.
OwnWeights      N workers with weights of their own, which gossip.
LocalWeights    N workers with weights of their own, which agree every so many steps.

A sync names the learner that it serves (`cpdrun.comm.sync.base.GradientSync.learner`).

Legend: N workers, W of them on this rank, B samples a worker, P parameters.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.record.measure import Measure
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import Evaluation
from cpdrun.train.learners.gradients import Gradients
from cpdrun.train.precision.base import Precision
from cpdrun.whatif.collect.observer import Observer


class Learner(ABC):
    """One training run's weights and optimizer state, on all ranks together."""

    parts: Parts

    shares_weights: ClassVar[bool] = True
    """Whether all workers have the same weights."""

    gradients_of: Gradients
    """Of the workers that this rank plays."""

    nonfinite: int = 0
    """Elements of the latest step's gradients that are inf or NaN: equal on all ranks, and for any split."""

    observer: Observer
    """Looks at what a step has; the loop sets it."""

    layers: dict[str, dict[str, Any]]
    """What the latest step that was looked at did to each parameter's gradient, by its name."""

    @abstractmethod
    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        """At the start of a run, with the weights that `parts.model` has."""

    @classmethod  # noqa: B027
    def check(cls, config: dict[str, Any], precision: Precision, sync: Any) -> None:
        """Raises ValueError for settings that make no sense with this learner."""

    @abstractmethod
    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        """One optimizer step on the samples that each worker takes; the losses of this rank's workers (W,).

        step, epoch: counted from 0, from the start of the run. lr_factor: of the rates that the optimizer was
        made with. look: set `layers`. Collective.
        """

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Evaluate on held-out data, with the same result on every rank. Collective."""

    def measures(self) -> dict[str, Measure]:
        """What each metric of `evaluate` is, and `train_loss`, by its name."""
        task = self.parts.task
        return {"train_loss": task.measures["loss"]} | {
            f"test_{name}": m for name, m in task.measures.items()
        }

    def test_samples(self) -> int:
        """How many samples of the test set `evaluate` judges (images, sequences), whatever each holds."""
        return len(self.parts.data.test)

    def memory(self) -> dict[str, int]:
        """Bytes of the model and of the optimizer that one worker keeps, each value in its format."""
        return {}

    def topology(self) -> dict[str, float] | None:
        """Who sends to whom, where workers gossip: `neighbours`, the most that a worker has, and `spectral_gap`."""
        return None

    def longest_chain(self) -> int | None:
        """The most rounded additions in series that a gradient may pass; None where nobody knows, or none is added."""
        return None

    @abstractmethod
    def wire_bytes(self) -> dict[str, int]:
        """What the latest step sent, as `GradientSync.wire_bytes` counts it."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint must keep, for any later number of ranks; whole on rank 0. Collective."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave on rank 0, on every rank."""

    @abstractmethod
    def weights_sha256(self) -> str:
        """Digest of all weights and buffers: equal digests, equal bits. Collective."""
