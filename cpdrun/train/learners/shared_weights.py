"""Learners whose workers share one set of weights: data parallelism, with the weights replicated or sharded.

With sharding (`cpdrun.comm.sync.sharded_sync`), the optimizer of each worker updates one part of the weights. The model
uses the weights in the format in which they are gathered. A rank stores only its part of their float32 masters and of
the optimizer's state, as one flat tensor per layer, which may be empty. Therefore the optimizer must be elementwise and
must not depend on whole layers. clip_norm uses the norm of all parts, added in float64 in the order of the workers.
Checkpoints contain whole layers and do not depend on the number of ranks that wrote them.

Shapes: N workers, W of them on this rank, P parameters, n elements of a layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cpdrun.comm.model_parallel import model_workers_of
from cpdrun.comm.sync.base import GradientSync
from cpdrun.comm.sync.sharded_sync import ShardedSync
from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import Evaluation, evaluate
from cpdrun.train.instantiate import BuildError, locate
from cpdrun.train.learners.base import Learner, OptimizerStep, index_by_layer
from cpdrun.train.learners.emulated_workers import SharedModel
from cpdrun.train.learners.gradients import EMULATIONS, Objective
from cpdrun.train.precision.base import Precision, get_gradient, storage_bytes
from cpdrun.train.state import checkpoint


class SharedWeights(Learner):
    """N workers with one set of weights. A GradientSync computes the mean of their gradients."""

    parts: Parts[GradientSync]
    loads_optimizer = True

    def __init__(
        self, config: dict[str, Any], parts: Parts[GradientSync], workers: Workers, device: torch.device
    ):
        self.parts, self.workers, self.device = parts, workers, device
        parameters = list(trainable(parts.model).values())
        self.optimizer_step = OptimizerStep(parts.optimizer, parameters, parts.precision, config["clip_norm"])
        objective = Objective(
            SharedModel(parts.model, workers),
            parts.batches,
            parts.task,
            lambda _w: self.optimizer_step.scale,
        )
        self.gradients_of = EMULATIONS[config["emulation"]](objective)
        self.model_workers = model_workers_of(parts.model)
        self.within_models = dict.fromkeys(parts.sync.wire_bytes(), 0)
        parts.model.train()

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        """Take one optimizer step with the mean gradient of all workers."""
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
            self.layers = index_by_layer(sync.statistics(gradients_WxP, mean_gradient))
        self.nonfinite = sync.nonfinite
        self.optimizer_step(mean_gradient, sync.nonfinite, lr_factor)
        return losses_W

    def _count_within_models(self, workers: int) -> None:
        """Store the bytes that workers of one model exchanged in this step, before an evaluation exchanges more."""
        sent = sum(shared.sent_bytes for shared in self.model_workers)
        real = sum(shared.real_worker_bytes for shared in self.model_workers)
        self.within_models = {"bytes_per_step_sent": sent, "bytes_per_step_real_worker": real // workers}

    def memory(self) -> dict[str, int]:
        """Return the bytes of the model and of the optimizer."""
        return self.optimizer_step.memory(self.parts.model)

    def longest_chain(self) -> int | None:
        """Return the largest number of rounded additions that one gradient passes through."""
        return self.parts.sync.longest_chain

    def wire_bytes(self) -> dict[str, int]:
        """Return the bytes sent for gradients and, if workers share a model, within its passes."""
        return {key: n + self.within_models[key] for key, n in self.parts.sync.wire_bytes().items()}

    def evaluate(self) -> Evaluation:
        """Evaluate the model on held-out data."""
        return evaluate(self.parts, self.workers, self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "model": self.parts.model.state_dict(),
            **self.optimizer_step.state_dict(),
            "sync": self.parts.sync.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.parts.model.load_state_dict(state["model"])
        self.optimizer_step.load_state_dict(state)
        self.parts.sync.load_state_dict(state["sync"])

    def weights_sha256(self) -> str:
        """Return a digest of the model's weights and buffers."""
        return checkpoint.weights_sha256(self.parts.model)


# The optimizers of torch.optim whose update of an element does not depend on other elements
ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop")


class ShardedWeights(SharedWeights):
    """N workers with one set of weights. Each part of the weights is updated by the worker that owns it."""

    loads_optimizer = False

    def __init__(
        self, config: dict[str, Any], parts: Parts[ShardedSync], workers: Workers, device: torch.device
    ):
        super().__init__(config, parts, workers, device)
        if self.model_workers:
            raise BuildError(
                "sync=sharded is not supported if the workers share a model, because each worker already has only a "
                "part of it. Set sync=all_reduce"
            )
        self.weights, self.sync = list(trainable(parts.model).values()), parts.sync
        self.owned = self.sync.begin(self.weights)
        self.masters = [
            nn.Parameter(w.detach().reshape(-1)[owned].clone())
            for w, owned in zip(self.weights, self.owned, strict=True)
        ]
        optimizer = parts.make_optimizer(self.masters)
        self.optimizer_step = ShardedOptimizerStep(
            self.sync, optimizer, self.masters, parts.precision, config["clip_norm"]
        )
        if (
            not self.sync.in_format.differences
        ):  # The first differences are relative to the initial weights, which all workers have.
            self._gather(epoch=0)

    @classmethod
    def check(cls, config: dict[str, Any], precision: Precision, sync: ShardedSync) -> None:
        """Raise ValueError if the settings do not work with sharded weights."""
        if precision.rounds_weights:
            raise ValueError(
                f"{precision.rounds_weights}: sync=sharded stores weights in float32. To round the weights that a step "
                "uses, set sync.gather"
            )
        optimizer = locate(config["optim"]["_target_"])
        is_known = optimizer.__module__.startswith("torch.optim") and optimizer.__name__ in ELEMENTWISE
        if not (is_known or getattr(optimizer, "elementwise", False)):
            raise ValueError(
                f"optim: {optimizer.__name__} needs whole layers, but with sync=sharded, a worker has only a part of "
                "each layer. Set optim=sgd or adamw, or sync=all_reduce"
            )
        if (name := precision.state_with_scales) is not None:
            raise ValueError(
                f"precision.optimizer_state={name} has scales for blocks of elements, which sync=sharded would divide. "
                "Use a format without scales"
            )

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        """Take one optimizer step: reduce-scatter the gradients, update each part, gather the weights."""
        self.parts.precision.at(step)
        losses_W, gradients_WxP = self.gradients_of(index_NxB, step)
        self.observer.gradients(gradients_WxP)
        mine = self.sync.scatter(gradients_WxP, step=step, epoch=epoch)
        if look:
            whole = self.sync.whole(mine)
            mean_gradient = [g_n.view(w.shape) for g_n, w in zip(whole, self.weights, strict=True)]
            self.layers = index_by_layer(self.sync.statistics(gradients_WxP, mean_gradient))
        self.nonfinite = self.sync.nonfinite
        self.optimizer_step(mine, self.nonfinite, lr_factor)
        self._gather(epoch=epoch)
        return losses_W

    def _gather(self, epoch: int) -> None:
        self.sync.gather_([m.detach() for m in self.masters], self.weights, epoch=epoch)

    def memory(self) -> dict[str, int]:
        """Return the bytes of the model and of the optimizer.

        "model_bytes" counts weights in the format in which they are gathered. "optimizer_bytes" is the mean over
        workers of the optimizer's state and, if weights are gathered in another format, of their float32 masters.
        """
        gather = self.sync.in_format
        state = self.parts.precision.state_bytes(self.optimizer_step.optimizer, self.masters)
        if gather.differences or not gather.fmt.is_fp32:
            state += sum(m.nbytes for m in self.masters)
        total = self.workers.total(state, self.device)
        fixed: list[Tensor] = [p for p in self.parts.model.parameters() if not p.requires_grad]
        fixed += [b for b in self.parts.model.buffers() if b.is_floating_point()]
        in_use = sum(storage_bytes(w, gather.fmt.name) for w in self.weights)
        return {
            "model_bytes": in_use + sum(x.nbytes for x in fixed),
            "optimizer_bytes": -(-total // self.workers.world_size),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, which contains whole layers instead of each rank's parts. Collective."""
        step_state = self.optimizer_step.state_dict()
        order = self._parameter_ids()
        layer_of = {order.index(id(m)): p for p, m in enumerate(self.masters)}
        parts: list[dict[str, Tensor]] = [{"master": m.detach()} for m in self.masters]
        for i, state in step_state["optimizer"]["state"].items():
            part = parts[layer_of[i]]
            part |= {k: v for k, v in state.items() if _is_part(v, part["master"])}
        whole = self._gather_layers(parts)
        optimizer = dict(step_state["optimizer"])
        optimizer["state"] = {
            i: {k: whole[layer_of[i]].get(k, v) if whole else v for k, v in state.items()}
            for i, state in optimizer["state"].items()
        }
        return {
            "model": self.parts.model.state_dict(),
            **step_state,
            "optimizer": optimizer,
            "masters": [layer["master"] for layer in whole],
            "sync": self.sync.state_dict(),
        }

    def _parameter_ids(self) -> list[int]:
        """Return the ids of the parameters in the order in which the optimizer numbers them."""
        return [id(p) for group in self.optimizer_step.optimizer.param_groups for p in group["params"]]

    def _gather_layers(self, parts: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Concatenate the ranks' parts of each layer. Returns tensors (n,) on rank 0, [] elsewhere. Collective."""
        by_rank = self.workers.gather({self.workers.rank: parts})
        by_layer = zip(*(by_rank[rank] for rank in sorted(by_rank)), strict=True)
        return [{k: torch.cat([part[k] for part in of_layer]) for k in of_layer[0]} for of_layer in by_layer]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.parts.model.load_state_dict(state["model"])
        order = self._parameter_ids()
        optimizer = dict(state["optimizer"])
        owned = {
            order.index(id(m)): (part, w.numel())
            for m, part, w in zip(self.masters, self.owned, self.weights, strict=True)
        }
        optimizer["state"] = {
            i: {k: _take_part(v, *owned[i]) for k, v in values.items()}
            for i, values in state["optimizer"]["state"].items()
        }
        self.optimizer_step.load_state_dict(state | {"optimizer": optimizer})
        with torch.no_grad():
            for master, part, whole_n in zip(self.masters, self.owned, state["masters"], strict=True):
                master.copy_(whole_n[part])
        self.sync.load_state_dict(state["sync"])


class ShardedOptimizerStep(OptimizerStep):
    """The step of an optimizer that updates only parts of layers. Gradient clipping uses the norm of all parts."""

    def __init__(self, sync: ShardedSync, *arguments: Any):
        super().__init__(*arguments)
        self.sync = sync

    def _clip(self, clip_norm: float) -> None:
        """Clip like torch.nn.utils.clip_grad_norm_, with another order of additions."""
        workers = self.sync.workers
        norm_N = torch.zeros(workers.world_size, dtype=torch.float64, device=self.parameters[0].device)
        for worker, shards in zip(workers.local, self.sync.shards_of_mine, strict=True):
            for p, (shard, owned) in enumerate(zip(shards, self.sync.owned, strict=True)):
                grad = get_gradient(self.parameters[p])[shard.start - owned.start : shard.stop - owned.start]
                norm_N[worker] += grad.double().square().sum()
        norm = workers.sum_of_disjoint(norm_N).sum().sqrt()
        factor = torch.clamp(clip_norm / (norm + 1e-6), max=1.0).float()
        torch._foreach_mul_([get_gradient(p) for p in self.parameters], factor)


def _is_part(value: Any, master: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and value.shape == master.shape


def _take_part(value: Any, part: slice, numel: int) -> Any:
    """Return the part of a tensor of a whole layer. Other values are returned unchanged."""
    is_whole = isinstance(value, Tensor) and value.dim() == 1 and value.numel() == numel
    return value[part].clone() if is_whole else value
