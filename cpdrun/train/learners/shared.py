"""What learns in the training loop, behind one interface: what the loop calls, and nothing of how it is done.

SharedWeights   N workers, one set of weights: the mean of their gradients, formed by a GradientSync, moves it.
OwnWeights      N workers with weights of their own, which gossip (`decentralized.py`).

Legend: N workers, W of them on this rank, B samples a worker, P parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.parallel.workers import model_workers_of
from cpdrun.comm.workers import Workers
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import evaluate
from cpdrun.train.learners.gradients import EMULATIONS, Objective
from cpdrun.train.loss import training_loss
from cpdrun.train.state import checkpoint


class Learner(ABC):
    """One training run's weights and optimizer state, on all ranks together."""

    parts: Parts

    nonfinite: int = 0
    """Elements of the latest step's gradients that are inf or NaN: equal on all ranks, and for any split."""

    layers: dict[str, dict[str, Any]]
    """What the latest step that was looked at did to each parameter's gradient, by its name."""

    @abstractmethod
    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        """One optimizer step on the samples that each worker takes; the losses of this rank's workers (W,).

        step, epoch: counted from 0, from the start of the run. lr_factor: of the rates that the optimizer was
        made with. look: set `layers`. Collective.
        """

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Metrics on held-out data, the same on every rank. Collective."""

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


class SharedWeights(Learner):
    """Data parallelism: one model, one optimizer, the mean gradient of all workers."""

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        self.parts, self.workers, self.device = parts, workers, device
        self.clip_norm = config["clip_norm"]
        self.parameters = list(parts.model.parameters())
        self.base_lrs = [group["lr"] for group in parts.optimizer.param_groups]
        loss = partial(training_loss, label_smoothing=config["label_smoothing"])
        objective = Objective(parts.model, parts.batches, workers, loss, parts.precision.scaled())
        self.gradients_of = EMULATIONS[config["emulation"]](objective)
        self.model_workers = model_workers_of(parts.model)
        self.within_models = dict.fromkeys(parts.sync.wire_bytes(), 0)
        parts.model.train()

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        optimizer, precision, sync = self.parts.optimizer, self.parts.precision, self.parts.sync
        set_rates(optimizer, self.base_lrs, lr_factor)
        scale = precision.loss_scale.value
        for shared in self.model_workers:
            shared.reset()
        losses_W, gradients_WxP = self.gradients_of(index_NxB, step)
        if self.model_workers:
            self._count_within_models(len(losses_W))
        mean_gradient = sync.reduce_stacked(gradients_WxP, step=step, epoch=epoch)
        if look:
            rows = sync.statistics(gradients_WxP, mean_gradient)
            self.layers = {row.pop("layer"): row for row in rows}
        self.nonfinite = sync.nonfinite
        if precision.loss_scale.accept(sync.nonfinite):
            if scale != 1:
                torch._foreach_div_(mean_gradient, scale)
            for parameter, gradient in zip(self.parameters, mean_gradient, strict=True):
                parameter.grad = gradient
            if self.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
            precision.step(optimizer, self.parameters)
        else:
            precision.skip()
        return losses_W

    def _count_within_models(self, workers: int) -> None:
        """Before the evaluation, whose exchanges are no part of a step."""
        sent = sum(shared.sent_bytes for shared in self.model_workers)
        of_all = sum(shared.real_worker_bytes for shared in self.model_workers)
        self.within_models = {"bytes_per_step_sent": sent, "bytes_per_step_real_worker": of_all // workers}

    def memory(self) -> dict[str, int]:
        return self.parts.precision.memory(self.parts.optimizer, self.parameters)

    def longest_chain(self) -> int | None:
        return self.parts.sync.longest_chain

    def wire_bytes(self) -> dict[str, int]:
        """Gradients, and what workers that share a model exchange forward and backward."""
        return {key: n + self.within_models[key] for key, n in self.parts.sync.wire_bytes().items()}

    def evaluate(self) -> dict[str, float]:
        return evaluate_on(self.parts, self.workers, self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.parts.model.state_dict(),
            "optimizer": self.parts.optimizer.state_dict(),
            "precision": self.parts.precision.state_dict(),
            "sync": self.parts.sync.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.model.load_state_dict(state["model"])
        self.parts.optimizer.load_state_dict(state["optimizer"])
        self.parts.precision.load_state_dict(state["precision"])
        self.parts.sync.load_state_dict(state["sync"])

    def weights_sha256(self) -> str:
        return checkpoint.weights_sha256(self.parts.model)


def set_rates(optimizer: torch.optim.Optimizer, base_lrs: Sequence[float], factor: float) -> None:
    """Each parameter group's learning rate: its base times `factor`."""
    for group, base_lr in zip(optimizer.param_groups, base_lrs, strict=True):
        group["lr"] = base_lr * factor


def evaluate_on(
    parts: Parts, workers: Workers, device: torch.device, samples: int | None = None
) -> dict[str, float]:
    """The metrics of `parts.model` as it stands on the test set of `parts.data`, or its first `samples`; `workers`'
    ranks share the work."""
    data = parts.data
    extra = getattr(data, "metrics", ())
    classes = data.num_classes
    return evaluate(
        parts.model,
        data.test,
        workers,
        device,
        num_classes=classes,
        extra=extra,
        samples=samples,
        batch=parts.eval_batch,
        loaders=parts.batches.loaders,
    )
