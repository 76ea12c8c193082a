"""N workers with weights and optimizers of their own: what gossip and local training have in common.

Legend: N workers, W of them on this rank, B samples a worker, P parameters.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.train.build import Parts
from cpdrun.train.learners.base import Learner
from cpdrun.train.learners.gradients import EMULATIONS, Objective
from cpdrun.train.learners.played import OwnModels
from cpdrun.train.learners.update import Update
from cpdrun.train.precision.activations import activation_bytes
from cpdrun.train.precision.base import Precision


class Apart(Learner):
    """N models and N optimizers; a subclass says what brings them together."""

    shares_weights = False

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        self.parts, self.workers, self.device = parts, workers, device
        self.layers = {}
        self.models = OwnModels(parts.model, workers)
        self.updates = [
            Update(parts.make_optimizer(weights), weights, parts.precision.of_worker(), config["clip_norm"])
            for weights in self.models.parameters
        ]
        self.batch_size = config["batch_size"]
        self.last_step = parts.course.steps - 1
        objective = Objective(self.models, parts.batches, parts.task, lambda w: self.updates[w].scale)
        self.gradients_of = EMULATIONS[config["emulation"]](objective)
        parts.model.train()

    @staticmethod
    def check_precision(precision: Precision, who: str) -> None:
        """Raises ValueError for what only weights that all share can be kept in; who: the workers, in words."""
        if precision.rounds_weights:
            raise ValueError(
                f"{precision.rounds_weights}: {who} keep float32 weights; take precision=fp32, or int8, "
                "which rounds them where they are used"
            )
        if precision.remembers:
            raise ValueError(
                f"{precision.remembers}: {who} have no step in common that a history could follow; take "
                "formats with scales of the tensor at hand, as recipe=fp8_tensorwise has them"
            )

    def own_steps(
        self,
        index_NxB: Tensor,
        *,
        step: int,
        lr_factor: float,
        correct: Callable[[int, Sequence[Tensor]], None] | None = None,
    ) -> tuple[Tensor, int]:
        """Each of my workers steps by its own gradient, which `correct` may change before, of its place w among mine.
        Losses (W,), and how many elements of their gradients are inf or NaN."""
        losses_W, gradients_WxP = self.gradients_of(index_NxB, step)
        nonfinite = 0
        for w, update in enumerate(self.updates):
            gradient = [stack[w] for stack in gradients_WxP]
            of_worker = _nonfinite(gradient)
            update(gradient, of_worker, lr_factor, correct and partial(correct, w))
            nonfinite += of_worker
        return losses_W, nonfinite

    def memory(self) -> dict[str, int]:
        """With what a batch leaves for the backward pass, activation_bytes."""
        self.models.begin_worker(0)
        task, model, batch = self.parts.task, self.parts.model, self.parts.batches.plain(self.batch_size)
        bits = self.parts.precision.activation_bits
        return self.updates[0].memory(model) | {
            "activation_bytes": activation_bytes(model, lambda: task.outputs(model, batch), bits),
        }

    def workers_state(self) -> dict[int, dict[str, Any]]:
        """Every worker's weights, buffers, optimizer and precision, on rank 0. Collective."""
        mine = {
            worker: self.models.of_worker(w) | self.updates[w].state_dict()
            for w, worker in enumerate(self.workers.mine)
        }
        return self.workers.gather(mine)

    def load_workers_state(self, state: dict[int, dict[str, Any]]) -> None:
        for w, worker in enumerate(self.workers.mine):
            self.models.take(w, state[worker])
            self.updates[w].load_state_dict(state[worker])


def _nonfinite(gradient: list[Tensor]) -> int:
    if bool(torch.isfinite(torch.stack([g.sum() for g in gradient])).all()):
        return 0
    return sum(int((~torch.isfinite(g)).sum()) for g in gradient)
