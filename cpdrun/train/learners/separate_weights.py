"""Learners whose workers have separate weights and optimizers: gossip and local steps.

GossipWeights (`cpdrun.comm.gossip.base`): workers average their weights with their neighbors after every step. Test
metrics are means over the workers, each evaluated on sync.worker_test_samples samples. `NAME_worst` is the metric of
the worst worker. `NAME_averaged_model` is the metric of the averaged weights on all test data. consensus_distance is
sqrt(mean_i |x_i - x_mean|^2), and bytes_sent_per_worker counts all bytes that a worker has sent.

LocalWeights (`cpdrun.comm.sync.local`): workers take H steps separately between two outer steps. Test metrics are those
of the agreed weights, which are the result of the latest outer step. They may be up to H - 1 steps old. Before the
first outer step, they are the initial weights. An outer step always follows the last step of a run. Buffers, such as
the running statistics of BatchNorm, are not communicated. The evaluation uses the buffers of worker 0. (In a script,
these are on rank 0, see `cpdrun.comm.LocalSteps`.)

Shapes: N workers, W of them on this rank, B samples per worker, P parameters, D values in a row, K metrics.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpdrun.comm.gossip.base import Gossip
from cpdrun.comm.gossip.topologies import mean_gap
from cpdrun.comm.sync.local import OuterStep
from cpdrun.comm.workers import Workers
from cpdrun.record.measure import ERROR, VARIANTS, Measure
from cpdrun.train.build import Parts, parameter_groups
from cpdrun.train.evaluate import Evaluation, evaluate
from cpdrun.train.learners.base import Learner, OptimizerStep, index_by_layer
from cpdrun.train.learners.emulated_workers import SeparateModels
from cpdrun.train.learners.gradients import EMULATIONS, Objective
from cpdrun.train.precision.base import Precision, activation_bytes
from cpdrun.train.state import checkpoint


class SeparateWeights(Learner):
    """The base class of learners with N models and N optimizers. Subclasses define how the models are synchronized."""

    shares_weights = False

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        self.parts, self.workers, self.device = parts, workers, device
        self.layers: dict[str, dict[str, Any]] = {}
        self.models = SeparateModels(parts.model, workers)
        self.optimizer_steps = [
            OptimizerStep(
                parts.make_optimizer(weights), weights, parts.precision.copy_for_worker(), config["clip_norm"]
            )
            for weights in self.models.parameters
        ]
        self.batch_size = config["batch_size"]
        self.last_step = parts.duration.steps - 1
        objective = Objective(self.models, parts.batches, parts.task, lambda w: self.optimizer_steps[w].scale)
        self.gradients_of = EMULATIONS[config["emulation"]](objective)
        parts.model.train()

    @staticmethod
    def check_precision(precision: Precision, who: str) -> None:
        """Raise ValueError if the precision needs shared weights. `who` describes the workers in the message."""
        if precision.rounds_weights:
            raise ValueError(
                f"{precision.rounds_weights}: {who} keep float32 weights. Set precision=fp32, or precision=int8, "
                "which rounds weights only in products"
            )
        if precision.remembers:
            raise ValueError(
                f"{precision.remembers}: {who} take separate optimizer steps, but delayed scales need "
                "common ones. Use formats whose scales depend only on the current tensor, as in "
                "recipe=fp8_tensorwise"
            )

    def step_workers(
        self,
        index_NxB: Tensor,
        *,
        step: int,
        lr_factor: float,
        correct: Callable[[int, list[Tensor]], None] | None = None,
    ) -> tuple[Tensor, int]:
        """Let each worker of this rank take an optimizer step with its own gradient.

        Args:
            index_NxB: The sample indices of each worker.
            step: The step of the run.
            lr_factor: Factor on the learning rates.
            correct: A function that changes the gradient of this rank's w-th worker in place before its step.

        Returns:
            The losses (W,), and the number of gradient elements that are inf or NaN.
        """
        losses_W, gradients_WxP = self.gradients_of(index_NxB, step)
        nonfinite = 0
        for w, optimizer_step in enumerate(self.optimizer_steps):
            gradient = [stack[w] for stack in gradients_WxP]
            count = _count_nonfinite(gradient)
            optimizer_step(gradient, count, lr_factor, partial(correct, w) if correct else None)
            nonfinite += count
        return losses_W, nonfinite

    def memory(self) -> dict[str, int]:
        """Return the bytes of the model, of the optimizer and of activations ("activation_bytes")."""
        self.models.begin_worker(0)
        task, model, batch = (
            self.parts.task,
            self.parts.model,
            self.parts.batches.first_samples(self.batch_size),
        )
        bits = self.parts.precision.activation_bits
        return self.optimizer_steps[0].memory(model) | {
            "activation_bytes": activation_bytes(model, lambda: task.outputs(model, batch), bits),
        }

    def workers_state(self) -> dict[int, dict[str, Any]]:
        """Gather the weights, buffers, optimizer and precision of every worker on rank 0. Collective."""
        mine = {
            worker: self.models.worker_state(w) | self.optimizer_steps[w].state_dict()
            for w, worker in enumerate(self.workers.local)
        }
        return self.workers.gather(mine)

    def load_workers_state(self, state: dict[int, dict[str, Any]]) -> None:
        """Load the state that `workers_state` returned."""
        for w, worker in enumerate(self.workers.local):
            self.models.load_worker_state(w, state[worker])
            self.optimizer_steps[w].load_state_dict(state[worker])


def _count_nonfinite(gradient: list[Tensor]) -> int:
    if bool(torch.isfinite(torch.stack([g.sum() for g in gradient])).all()):
        return 0
    return sum(int((~torch.isfinite(g)).sum()) for g in gradient)


class GossipWeights(SeparateWeights):
    """Workers that average their weights with a Gossip rule after every step."""

    def __init__(self, config: dict[str, Any], parts: Parts[Gossip], workers: Workers, device: torch.device):
        super().__init__(config, parts, workers, device)
        self.gossip = parts.sync
        self.gossip.begin(self.models.rows, self.models.x_WxD)

    @classmethod
    def check(cls, config: dict[str, Any], precision: Precision, sync: Gossip) -> None:
        """Raise ValueError if the settings do not work with gossip."""
        cls.check_precision(precision, "workers that gossip")
        if sync.beta is not None and "adamw_lr" in config["optim"]:
            raise ValueError(
                "sync.quasi_global_momentum supports one lr, but optim=muon has two. Type optim=sgd or optim=adamw"
            )
        if sync.beta is not None and config["optim"].get("momentum"):
            raise ValueError(
                f"sync.quasi_global_momentum={sync.beta} replaces optim.momentum. Type optim.momentum=0"
            )
        if sync.beta is not None and any("lr" in group for group in parameter_groups(config)):
            raise ValueError(
                "sync.quasi_global_momentum supports one lr. Remove lr from the groups in parameter_groups"
            )
        if sync.nesterov and config["optim"]["_target_"] != "torch.optim.SGD":
            raise ValueError("sync.nesterov=true looks ahead by one SGD step. Type optim=sgd")

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        """Let each worker take a step, then average with the neighbors."""
        x_WxD = self.models.x_WxD
        self.parts.precision.at(step)
        self.gossip.before_step(x_WxD, step=step, epoch=epoch)
        losses_W, nonfinite = self.step_workers(
            index_NxB, step=step, lr_factor=lr_factor, correct=self._correct
        )
        lr = self.optimizer_steps[0].base_lrs[0] * lr_factor
        self.gossip.after_step(x_WxD, lr=lr, step=step, epoch=epoch)
        if step == self.last_step:
            self.gossip.close(x_WxD, step=step, epoch=epoch)
        self.nonfinite = self.workers.total(nonfinite, self.device)
        return losses_W

    def _correct(self, w: int, gradient: list[Tensor]) -> None:
        self.gossip.correct(w, gradient, self._weight_decay(w) if self.gossip.nesterov else ())

    def _weight_decay(self, w: int) -> list[Tensor]:
        """Return the terms that weight decay adds to the gradients of the w-th worker of this rank."""
        step = self.optimizer_steps[w]
        factors = {
            id(p): group["weight_decay"] for group in step.optimizer.param_groups for p in group["params"]
        }
        return [p.detach() * factors[id(p)] for p in step.parameters]

    def test_samples(self) -> int:
        """Return the number of test samples for each worker. The averaged model is tested on all samples."""
        return min(len(self.parts.data.test), self.gossip.worker_test_samples or len(self.parts.data.test))

    def topology(self) -> dict[str, float]:
        """Return the greatest number of neighbors in any round, and the mean spectral gap of a round."""
        rounds = self.gossip.rounds
        most = max(len(neighbours) for graph in rounds for neighbours in graph.neighbours)
        return {"neighbours": most, "spectral_gap": mean_gap([graph.matrix_NxN for graph in rounds])}

    def wire_bytes(self) -> dict[str, int]:
        """Return the bytes that the latest step sent."""
        return self.gossip.wire_bytes()

    def evaluate(self) -> Evaluation:
        """Evaluate each worker and the averaged model.

        The result does not contain the outcome of each example, because the metric is a mean over models that may
        disagree about an example.
        """
        alone = Workers(1)
        mine = []
        for w in range(len(self.workers.local)):
            self.models.begin_worker(w)
            mine.append(evaluate(self.parts, alone, self.device, self.gossip.worker_test_samples).metrics)
        names = list(mine[0])
        table_NxK = torch.zeros(self.workers.world_size, len(names), dtype=torch.float64, device=self.device)
        for worker, metrics in zip(self.workers.local, mine, strict=True):
            table_NxK[worker] = torch.tensor([metrics[name] for name in names], dtype=torch.float64)
        by_name = dict(zip(names, self.workers.sum_of_disjoint(table_NxK).unbind(1), strict=True))
        distance = self.models.use_mean_weights()
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
        """Return the measure of each metric, including the variants of gossip."""
        measures = super().measures()
        return (
            measures
            | {f"{name}{variant}": measure for name, measure in measures.items() for variant in VARIANTS}
            | {"consensus_distance": ERROR, "bytes_sent_per_worker": ERROR}
        )

    def memory(self) -> dict[str, int]:
        """Return the bytes as in the base class, and those of the state of the gossip rule ("gossip_bytes")."""
        state = 4 * sum(self.models.rows.numels) * len(self.gossip.memory)
        return super().memory() | {"gossip_bytes": state}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"workers": self.workers_state(), "sync": self.gossip.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.load_workers_state(state["workers"])
        self.gossip.load_state_dict(state["sync"])

    def weights_sha256(self) -> str:
        """Return a digest of the digests of all workers, in ascending order of workers."""
        table_Nx32 = torch.zeros(self.workers.world_size, 32, dtype=torch.int32, device=self.device)
        for w, worker in enumerate(self.workers.local):
            self.models.begin_worker(w)
            digest = bytes.fromhex(checkpoint.weights_sha256(self.parts.model))
            table_Nx32[worker] = torch.tensor(list(digest), dtype=torch.int32)
        digests = bytes(self.workers.sum_of_disjoint(table_Nx32).flatten().tolist())
        return hashlib.sha256(digests).hexdigest()


class LocalWeights(SeparateWeights):
    """Workers that take steps by themselves and synchronize in an OuterStep every H steps."""

    def __init__(
        self, config: dict[str, Any], parts: Parts[OuterStep], workers: Workers, device: torch.device
    ):
        super().__init__(config, parts, workers, device)
        self.outer = parts.sync
        self.outer.begin(self.models.parameters[0])
        self.look_due = False  # whether the next outer step must compute gradient statistics

    @classmethod
    def check(cls, config: dict[str, Any], precision: Precision, sync: OuterStep) -> None:
        """Raise ValueError if the settings do not work with local steps."""
        cls.check_precision(precision, "workers that train on their own")

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        """Let each worker take a step, followed by an outer step if it is due."""
        self.parts.precision.at(step)
        losses_W, nonfinite = self.step_workers(index_NxB, step=step, lr_factor=lr_factor)
        x_PxW = self.models.rows.stacked(self.models.x_WxD)
        exchanged = self.outer.after_step(x_PxW, step=step, epoch=epoch, last=step == self.last_step)
        self.look_due |= look
        if exchanged and self.look_due:
            self.layers = index_by_layer(self.outer.exchange.statistics(*exchanged))
            self.look_due = False
        self.nonfinite = self.workers.total(nonfinite, self.device) + self.outer.nonfinite
        return losses_W

    def longest_chain(self) -> int | None:
        """Return the largest number of rounded additions that one gradient passes through."""
        return self.outer.longest_chain

    def wire_bytes(self) -> dict[str, int]:
        """Return the bytes that the latest step sent."""
        return self.outer.wire_bytes()

    def evaluate(self) -> Evaluation:
        """Evaluate the agreed weights."""
        self.models.use_weights(self.outer.agreed)
        return evaluate(self.parts, self.workers, self.device)

    def memory(self) -> dict[str, int]:
        """Return the bytes as in the base class, and those of agreed weights and outer momentum ("outer_bytes")."""
        return super().memory() | {"outer_bytes": self.outer.memory_bytes()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. `model` has the agreed weights with worker 0's buffers, for init_from."""
        self.models.use_weights(self.outer.agreed)
        return {
            "model": self.parts.model.state_dict(),
            "workers": self.workers_state(),
            "sync": self.outer.state_dict(),
            "statistics": {"due": self.look_due, "layers": self.layers},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.load_workers_state(state["workers"])
        self.outer.load_state_dict(state["sync"])
        self.look_due, self.layers = state["statistics"]["due"], state["statistics"]["layers"]

    def weights_sha256(self) -> str:
        """Return a digest of the agreed weights with worker 0's buffers."""
        self.models.use_weights(self.outer.agreed)
        return checkpoint.weights_sha256(self.parts.model)
