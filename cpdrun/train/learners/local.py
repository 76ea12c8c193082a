"""Workers that train on their own between outer steps (`cpdrun.comm.sync.local`).

What a run reports: metrics on held-out data are of the agreed weights, those of the latest outer step: within an inner
phase they are up to H - 1 steps old, and before the first outer step the initial ones. The last step of a run is
followed by an outer one, whatever H is. BatchNorm's running statistics (any buffer) are each worker's own, and worker
0's are evaluated: nothing is sent for them, and they are what rank 0 of a script has (`cpdrun.comm.LocalSteps`).

Legend: N workers, W of them on this rank, B samples a worker, P parameters.
"""

from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.sync.local import OuterStep
from cpdrun.comm.workers import Workers
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import Evaluation, evaluate
from cpdrun.train.learners.apart import Apart
from cpdrun.train.precision.base import Precision
from cpdrun.train.state import checkpoint


class LocalWeights(Apart):
    """An OuterStep brings the N models together, every so many steps."""

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        super().__init__(config, parts, workers, device)
        self.outer: OuterStep = parts.sync
        self.outer.begin(self.models.parameters[0])
        self.look_due = False  # a step was to be looked at; the next outer one is

    @classmethod
    def check(cls, config: dict[str, Any], precision: Precision, sync: OuterStep) -> None:
        cls.check_precision(precision, "workers that train on their own")

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        self.parts.precision.at(step)
        losses_W, nonfinite = self.own_steps(index_NxB, step=step, lr_factor=lr_factor)
        x_PxW = self.models.rows.stacked(self.models.x_WxD)
        exchanged = self.outer.after_step(x_PxW, step=step, epoch=epoch, last=step == self.last_step)
        self.look_due |= look
        if exchanged and self.look_due:
            rows = self.outer.exchange.statistics(*exchanged)
            self.layers, self.look_due = {row.pop("layer"): row for row in rows}, False
        self.nonfinite = self.workers.total(nonfinite, self.device) + self.outer.nonfinite
        return losses_W

    def longest_chain(self) -> int | None:
        return self.outer.longest_chain

    def wire_bytes(self) -> dict[str, int]:
        return self.outer.wire_bytes()

    def evaluate(self) -> Evaluation:
        self.models.play(self.outer.agreed)
        return evaluate(self.parts, self.workers, self.device)

    def memory(self) -> dict[str, int]:
        """With the agreed weights and outer momentum, outer_bytes."""
        return super().memory() | {"outer_bytes": self.outer.memory_bytes()}

    def state_dict(self) -> dict[str, Any]:
        """`model`: the agreed weights by their names, with worker 0's buffers, for init_from."""
        self.models.play(self.outer.agreed)
        return {
            "model": self.parts.model.state_dict(),
            "workers": self.workers_state(),
            "sync": self.outer.state_dict(),
            "statistics": {"due": self.look_due, "layers": self.layers},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.load_workers_state(state["workers"])
        self.outer.load_state_dict(state["sync"])
        self.look_due, self.layers = state["statistics"]["due"], state["statistics"]["layers"]

    def weights_sha256(self) -> str:
        """Of the agreed weights, with worker 0's buffers."""
        self.models.play(self.outer.agreed)
        return checkpoint.weights_sha256(self.parts.model)
