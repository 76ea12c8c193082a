"""Data parallelism: one model, one optimizer, the mean gradient of all workers."""

from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.model_parallel import model_workers_of
from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import Evaluation, evaluate
from cpdrun.train.learners.base import Learner
from cpdrun.train.learners.gradients import EMULATIONS, Objective
from cpdrun.train.learners.played import SharedModel
from cpdrun.train.learners.update import Update
from cpdrun.train.state import checkpoint


class SharedWeights(Learner):
    """N workers, one set of weights; a GradientSync forms the mean of their gradients."""

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        self.parts, self.workers, self.device = parts, workers, device
        parameters = list(trainable(parts.model).values())
        self.update = Update(parts.optimizer, parameters, parts.precision, config["clip_norm"])
        played = SharedModel(parts.model, workers)
        objective = Objective(played, parts.batches, parts.task, lambda _w: self.update.scale)
        self.gradients_of = EMULATIONS[config["emulation"]](objective)
        self.model_workers = model_workers_of(parts.model)
        self.within_models = dict.fromkeys(parts.sync.wire_bytes(), 0)
        parts.model.train()

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        sync = self.parts.sync
        self.parts.precision.at(step)
        for shared in self.model_workers:
            shared.reset()
        losses_W, gradients_WxP = self.gradients_of(index_NxB, step)
        self.observer.gradients(gradients_WxP)
        if self.model_workers:
            self._count_within_models(len(losses_W))
        mean_gradient = sync.reduce_stacked(gradients_WxP, step=step, epoch=epoch)
        if look:
            rows = sync.statistics(gradients_WxP, mean_gradient)
            self.layers = {row.pop("layer"): row for row in rows}
        self.nonfinite = sync.nonfinite
        self.update(mean_gradient, sync.nonfinite, lr_factor)
        return losses_W

    def _count_within_models(self, workers: int) -> None:
        """Before the evaluation, whose exchanges are no part of a step."""
        sent = sum(shared.sent_bytes for shared in self.model_workers)
        of_all = sum(shared.real_worker_bytes for shared in self.model_workers)
        self.within_models = {"bytes_per_step_sent": sent, "bytes_per_step_real_worker": of_all // workers}

    def memory(self) -> dict[str, int]:
        return self.update.memory(self.parts.model)

    def longest_chain(self) -> int | None:
        return self.parts.sync.longest_chain

    def wire_bytes(self) -> dict[str, int]:
        """Gradients, and what workers that share a model exchange forward and backward."""
        return {key: n + self.within_models[key] for key, n in self.parts.sync.wire_bytes().items()}

    def evaluate(self) -> Evaluation:
        return evaluate(self.parts, self.workers, self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.parts.model.state_dict(),
            **self.update.state_dict(),
            "sync": self.parts.sync.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.model.load_state_dict(state["model"])
        self.update.load_state_dict(state)
        self.parts.sync.load_state_dict(state["sync"])

    def weights_sha256(self) -> str:
        return checkpoint.weights_sha256(self.parts.model)
