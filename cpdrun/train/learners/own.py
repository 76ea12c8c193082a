"""Workers with weights and optimizers of their own, which gossip after every step (`cpdrun.comm.gossip.base`).

What a run reports: test metrics are the mean over the workers, each evaluated on sync.worker_test_samples; *_worst
is that of the worst worker, *_averaged_model that of the mean of all weights, on all test data; consensus_distance is
sqrt(mean_i |x_i - x_mean|^2), bytes_sent_per_worker what a worker has sent so far.

Legend: N workers, W of them on this rank, B samples a worker, P parameters, D values in a row.
"""

import hashlib
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.gossip.base import Gossip
from cpdrun.comm.gossip.topology.mixing import mean_gap
from cpdrun.comm.workers import Workers
from cpdrun.record.measure import ERROR, VARIANTS, Measure
from cpdrun.train.build import Parts, groups_of
from cpdrun.train.evaluate import evaluate
from cpdrun.train.learners.base import Learner
from cpdrun.train.learners.gradients import EMULATIONS, Objective
from cpdrun.train.learners.played import OwnModels
from cpdrun.train.learners.update import Update
from cpdrun.train.precision.activations import activation_bytes
from cpdrun.train.precision.base import Precision
from cpdrun.train.state import checkpoint


class OwnWeights(Learner):
    """N models and N optimizers; a Gossip rule brings them together."""

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        self.parts, self.workers, self.device, self.gossip = parts, workers, device, parts.sync
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
        self.gossip.begin(self.models.rows, self.models.x_WxD)
        parts.model.train()

    @classmethod
    def check(cls, config: dict[str, Any], precision: Precision, sync: Gossip) -> None:
        if precision.rounds_weights:
            raise ValueError(
                f"{precision.rounds_weights}: workers that gossip keep float32 weights; take precision=fp32, or int8, "
                "which rounds them where they are used"
            )
        if sync.beta is not None and "adamw_lr" in config["optim"]:
            raise ValueError(
                "sync.quasi_global_momentum knows one lr, and optim=muon has two: type optim=sgd or adamw"
            )
        if precision.remembers:
            raise ValueError(
                f"{precision.remembers}: workers that gossip have no step in common that a history could follow; take "
                "formats with scales of the tensor at hand, as recipe=fp8_tensorwise has them"
            )
        if sync.beta is not None and config["optim"].get("momentum"):
            raise ValueError(
                f"sync.quasi_global_momentum={sync.beta} stands in for optim.momentum: type optim.momentum=0"
            )
        if sync.beta is not None and any("lr" in group for group in groups_of(config)):
            raise ValueError("sync.quasi_global_momentum knows one lr: parameter_groups must not set others")
        if sync.nesterov and config["optim"]["_target_"] != "torch.optim.SGD":
            raise ValueError("sync.nesterov=true looks a step of SGD ahead: type optim=sgd")

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        x_WxD = self.models.x_WxD
        self.parts.precision.at(step)
        self.gossip.before_step(x_WxD, step=step, epoch=epoch)
        losses_W, gradients_WxP = self.gradients_of(index_NxB, step)
        nonfinite = 0
        for w, update in enumerate(self.updates):
            gradient = [stack[w] for stack in gradients_WxP]
            of_worker = _nonfinite(gradient)
            update(gradient, of_worker, lr_factor, partial(self._correct, w))
            nonfinite += of_worker
        lr = self.updates[0].base_lrs[0] * lr_factor
        self.gossip.after_step(x_WxD, lr=lr, step=step, epoch=epoch)
        if step == self.last_step:
            self.gossip.close(x_WxD, step=step, epoch=epoch)
        count = torch.tensor(nonfinite, dtype=torch.int64, device=self.device)
        self.nonfinite = int(self.workers.sum_of_disjoint(count))
        return losses_W

    def _correct(self, w: int, gradient: list[Tensor]) -> None:
        self.gossip.correct(w, gradient, self._decay(w) if self.gossip.nesterov else ())

    def _decay(self, w: int) -> list[Tensor]:
        """What weight decay adds to each gradient of my w-th worker."""
        update = self.updates[w]
        of = {
            id(p): group["weight_decay"] for group in update.optimizer.param_groups for p in group["params"]
        }
        return [p.detach() * of[id(p)] for p in update.parameters]

    def test_samples(self) -> int:
        """Of each worker; the averaged model is judged on all."""
        return min(len(self.parts.data.test), self.gossip.worker_test_samples or len(self.parts.data.test))

    def topology(self) -> dict[str, float]:
        """Of all rounds, where the graph changes: the most neighbours in any, the spectral gap a round."""
        rounds = self.gossip.rounds
        most = max(len(of_worker) for graph in rounds for of_worker in graph.neighbours)
        return {"neighbours": most, "spectral_gap": mean_gap([graph.matrix_NxN for graph in rounds])}

    def wire_bytes(self) -> dict[str, int]:
        return self.gossip.wire_bytes()

    def evaluate(self) -> dict[str, float]:
        alone = Workers(1)
        mine = []
        for w in range(len(self.workers.mine)):
            self.models.begin_worker(w)
            mine.append(evaluate(self.parts, alone, self.device, self.gossip.worker_test_samples))
        names = list(mine[0])
        table_NxK = torch.zeros(self.workers.world_size, len(names), dtype=torch.float64, device=self.device)
        for worker, metrics in zip(self.workers.mine, mine, strict=True):
            table_NxK[worker] = torch.tensor([metrics[name] for name in names], dtype=torch.float64)
        by_name = dict(zip(names, self.workers.sum_of_disjoint(table_NxK).unbind(1), strict=True))
        distance = self.models.play_mean()
        averaged = evaluate(self.parts, self.workers, self.device)
        return (
            {name: values_N.mean().item() for name, values_N in by_name.items()}
            | {f"{name}_worst": self._worst(name, values_N) for name, values_N in by_name.items()}
            | {f"{name}_averaged_model": value for name, value in averaged.items()}
            | {"consensus_distance": distance, "bytes_sent_per_worker": self.gossip.bytes_sent}
        )

    def _worst(self, name: str, values_N: Tensor) -> float:
        better = super().measures()[name].higher_is_better
        return (values_N.min() if better else values_N.max()).item()

    def measures(self) -> dict[str, Measure]:
        own = super().measures()
        return (
            own
            | {f"{name}{variant}": measure for name, measure in own.items() for variant in VARIANTS}
            | {"consensus_distance": ERROR, "bytes_sent_per_worker": ERROR}
        )

    def memory(self) -> dict[str, int]:
        """With what the gossip rule remembers, gossip_bytes, and what a batch leaves for the backward pass,
        activation_bytes."""
        self.models.begin_worker(0)
        task, model, batch = self.parts.task, self.parts.model, self.parts.batches.plain(self.batch_size)
        bits = self.parts.precision.activation_bits
        return self.updates[0].memory(model) | {
            "gossip_bytes": 4 * sum(self.models.rows.numels) * len(self.gossip.memory),
            "activation_bytes": activation_bytes(model, lambda: task.outputs(model, batch), bits),
        }

    def state_dict(self) -> dict[str, Any]:
        mine = {
            worker: self.models.of_worker(w) | self.updates[w].state_dict()
            for w, worker in enumerate(self.workers.mine)
        }
        return {"workers": self.workers.gather(mine), "sync": self.gossip.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for w, worker in enumerate(self.workers.mine):
            self.models.take(w, state["workers"][worker])
            self.updates[w].load_state_dict(state["workers"][worker])
        self.gossip.load_state_dict(state["sync"])

    def weights_sha256(self) -> str:
        """Digest of the workers' digests, in their order."""
        table_Nx32 = torch.zeros(self.workers.world_size, 32, dtype=torch.int32, device=self.device)
        for w, worker in enumerate(self.workers.mine):
            self.models.begin_worker(w)
            digest = bytes.fromhex(checkpoint.weights_sha256(self.parts.model))
            table_Nx32[worker] = torch.tensor(list(digest), dtype=torch.int32)
        digests = bytes(self.workers.sum_of_disjoint(table_Nx32).flatten().tolist())
        return hashlib.sha256(digests).hexdigest()


def _nonfinite(gradient: list[Tensor]) -> int:
    if bool(torch.isfinite(torch.stack([g.sum() for g in gradient])).all()):
        return 0
    return sum(int((~torch.isfinite(g)).sum()) for g in gradient)
