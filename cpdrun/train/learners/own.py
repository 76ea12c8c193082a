"""Workers with weights and optimizers of their own, which gossip after every step (`cpdrun.comm.gossip.base`).

What a run reports: test metrics are the mean over the workers, each evaluated on sync.worker_test_samples; *_worst
is that of the worst worker, *_averaged_model that of the mean of all weights, on all test data; consensus_distance is
sqrt(mean_i |x_i - x_mean|^2), bytes_sent_per_worker what a worker has sent so far.

Legend: N workers, W of them on this rank, B samples a worker, P parameters, D values in a row.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.gossip.base import Gossip
from cpdrun.comm.gossip.topologies import mean_gap
from cpdrun.comm.workers import Workers
from cpdrun.record.measure import ERROR, VARIANTS, Measure
from cpdrun.train.build import Parts, groups_of
from cpdrun.train.evaluate import Evaluation, evaluate
from cpdrun.train.learners.apart import Apart
from cpdrun.train.precision.base import Precision
from cpdrun.train.state import checkpoint


class OwnWeights(Apart):
    """A Gossip rule brings the N models together."""

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        super().__init__(config, parts, workers, device)
        self.gossip = parts.sync
        self.gossip.begin(self.models.rows, self.models.x_WxD)

    @classmethod
    def check(cls, config: dict[str, Any], precision: Precision, sync: Gossip) -> None:
        cls.check_precision(precision, "workers that gossip")
        if sync.beta is not None and "adamw_lr" in config["optim"]:
            raise ValueError(
                "sync.quasi_global_momentum knows one lr, and optim=muon has two: type optim=sgd or adamw"
            )
        if sync.beta is not None and config["optim"].get("momentum"):
            raise ValueError(
                f"sync.quasi_global_momentum={sync.beta} stands in for optim.momentum: type optim.momentum=0"
            )
        if sync.beta is not None and any("lr" in group for group in groups_of(config)):
            raise ValueError("sync.quasi_global_momentum knows one lr: parameter_groups must not set others")
        if sync.nesterov and config["optim"]["_target_"] != "torch.optim.SGD":
            raise ValueError("sync.nesterov=true looks ahead by one SGD step: type optim=sgd")

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        x_WxD = self.models.x_WxD
        self.parts.precision.at(step)
        self.gossip.before_step(x_WxD, step=step, epoch=epoch)
        losses_W, nonfinite = self.own_steps(index_NxB, step=step, lr_factor=lr_factor, correct=self._correct)
        lr = self.updates[0].base_lrs[0] * lr_factor
        self.gossip.after_step(x_WxD, lr=lr, step=step, epoch=epoch)
        if step == self.last_step:
            self.gossip.close(x_WxD, step=step, epoch=epoch)
        self.nonfinite = self.workers.total(nonfinite, self.device)
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

    def evaluate(self) -> Evaluation:
        """Without outcomes of examples: the metric is a mean over models that answer differently."""
        alone = Workers(1)
        mine = []
        for w in range(len(self.workers.mine)):
            self.models.begin_worker(w)
            mine.append(evaluate(self.parts, alone, self.device, self.gossip.worker_test_samples).metrics)
        names = list(mine[0])
        table_NxK = torch.zeros(self.workers.world_size, len(names), dtype=torch.float64, device=self.device)
        for worker, metrics in zip(self.workers.mine, mine, strict=True):
            table_NxK[worker] = torch.tensor([metrics[name] for name in names], dtype=torch.float64)
        by_name = dict(zip(names, self.workers.sum_of_disjoint(table_NxK).unbind(1), strict=True))
        distance = self.models.play_mean()
        averaged = evaluate(self.parts, self.workers, self.device).metrics
        return Evaluation(
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
        """With what the gossip rule remembers, gossip_bytes."""
        remembered = 4 * sum(self.models.rows.numels) * len(self.gossip.memory)
        return super().memory() | {"gossip_bytes": remembered}

    def state_dict(self) -> dict[str, Any]:
        return {"workers": self.workers_state(), "sync": self.gossip.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.load_workers_state(state["workers"])
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
