"""Sharded data parallelism: one model; each worker's optimizer updates its own part (`cpdrun.comm.sync.sharded`).

Weights are used as they are gathered. Their float32 masters, and what the optimizer keeps, are of a rank's part alone:
one flat tensor a layer, which may be empty. So an optimizer must be elementwise, and know no layer as a whole;
clip_norm takes the norm of all parts, added in float64 in the order of workers.

A checkpoint has whole layers, whatever ranks wrote it.

Legend: N workers, W of them on this rank, n elements of a layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cpdrun.comm.sync.sharded import ShardedSync
from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.train.build import Parts
from cpdrun.train.instantiate import BuildError, locate
from cpdrun.train.learners.shared import SharedWeights
from cpdrun.train.learners.update import Update
from cpdrun.train.precision.base import Precision, kept_bytes

ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop")


class ShardedWeights(SharedWeights):
    """N workers, one set of weights, each part of it moved by its owner."""

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        super().__init__(config, parts, workers, device)
        if self.model_workers:
            raise BuildError(
                "sync=sharded: workers that share a model hold parts of it already: take sync=all_reduce"
            )
        self.weights, self.sync = list(trainable(parts.model).values()), parts.sync
        self.owned = self.sync.begin(self.weights)
        self.masters = [
            nn.Parameter(w.detach().reshape(-1)[own].clone())
            for w, own in zip(self.weights, self.owned, strict=True)
        ]
        optimizer = parts.make_optimizer(self.masters)
        self.update = ShardedUpdate(self.sync, optimizer, self.masters, parts.precision, config["clip_norm"])
        if not self.sync.in_format.differences:  # of which the first are to the weights that all begin with
            self._gather(epoch=0)

    @classmethod
    def check(cls, config: dict[str, Any], precision: Precision, sync: ShardedSync) -> None:
        if precision.rounds_weights:
            raise ValueError(
                f"{precision.rounds_weights}: workers that shard keep float32 weights; sync.gather says in which "
                "format they are used"
            )
        kind = locate(config["optim"]["_target_"])
        known = kind.__module__.startswith("torch.optim") and kind.__name__ in ELEMENTWISE
        if not (known or getattr(kind, "elementwise", False)):
            raise ValueError(
                f"optim: {kind.__name__} needs layers as a whole, of which a worker of sync=sharded has a part; take "
                "optim=sgd or adamw, or sync=all_reduce"
            )
        if (name := precision.state_with_scales) is not None:
            raise ValueError(
                f"precision.optimizer_state={name} has scales of more than an element, which sync=sharded would cut; "
                "take a format without"
            )

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        self.parts.precision.at(step)
        losses_W, gradients_WxP = self.gradients_of(index_NxB, step)
        self.observer.gradients(gradients_WxP)
        mine = self.sync.scatter(gradients_WxP, step=step, epoch=epoch)
        if look:
            whole = self.sync.whole(mine)
            mean_gradient = [g_n.view(w.shape) for g_n, w in zip(whole, self.weights, strict=True)]
            rows = self.sync.statistics(gradients_WxP, mean_gradient)
            self.layers = {row.pop("layer"): row for row in rows}
        self.nonfinite = self.sync.nonfinite
        self.update(mine, self.nonfinite, lr_factor)
        self._gather(epoch=epoch)
        return losses_W

    def _gather(self, epoch: int) -> None:
        self.sync.gather_([m.detach() for m in self.masters], self.weights, epoch=epoch)

    def memory(self) -> dict[str, int]:
        """model_bytes: the weights in use, in the format they are gathered in. optimizer_bytes: what a worker's
        optimizer keeps of its shard, on average, with the float32 weights where those in use are others."""
        gather = self.sync.in_format
        state = self.parts.precision.state_bytes(self.update.optimizer, self.masters)
        if gather.differences or not gather.fmt.is_fp32:
            state += sum(m.nbytes for m in self.masters)
        of_all = self.workers.total(state, self.device)
        fixed = [p for p in self.parts.model.parameters() if not p.requires_grad]
        fixed += [b for b in self.parts.model.buffers() if b.is_floating_point()]
        in_use = sum(kept_bytes(w, gather.fmt.name) for w in self.weights)
        return {
            "model_bytes": in_use + sum(x.nbytes for x in fixed),
            "optimizer_bytes": -(-of_all // self.workers.world_size),
        }

    def state_dict(self) -> dict[str, Any]:
        kept = self.update.state_dict()
        order = self._order()
        layer_of = {order.index(id(m)): p for p, m in enumerate(self.masters)}
        mine = [{"master": m.detach()} for m in self.masters]
        for i, state in kept["optimizer"]["state"].items():
            own = mine[layer_of[i]]
            own |= {k: v for k, v in state.items() if _is_part(v, own["master"])}
        whole = self._whole(mine)
        optimizer = dict(kept["optimizer"])
        optimizer["state"] = {
            i: {k: whole[layer_of[i]].get(k, v) if whole else v for k, v in state.items()}
            for i, state in optimizer["state"].items()
        }
        return {
            "model": self.parts.model.state_dict(),
            **kept,
            "optimizer": optimizer,
            "masters": [of_layer["master"] for of_layer in whole],
            "sync": self.sync.state_dict(),
        }

    def _order(self) -> list[int]:
        """Parameters as the optimizer numbers them, by their ids."""
        return [id(p) for group in self.update.optimizer.param_groups for p in group["params"]]

    def _whole(self, mine: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Of each layer (n,) of what every rank has a part of; on rank 0, [] elsewhere. Collective."""
        of_ranks = self.workers.gather({self.workers.rank: mine})
        by_layer = zip(*(of_ranks[rank] for rank in sorted(of_ranks)), strict=True)
        return [{k: torch.cat([part[k] for part in parts]) for k in parts[0]} for parts in by_layer]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts.model.load_state_dict(state["model"])
        order = self._order()
        optimizer = dict(state["optimizer"])
        owned = {
            order.index(id(m)): (own, w.numel())
            for m, own, w in zip(self.masters, self.owned, self.weights, strict=True)
        }
        optimizer["state"] = {
            i: {k: self._part(v, *owned[i]) for k, v in of_parameter.items()}
            for i, of_parameter in state["optimizer"]["state"].items()
        }
        self.update.load_state_dict(state | {"optimizer": optimizer})
        with torch.no_grad():
            for master, own, whole_n in zip(self.masters, self.owned, state["masters"], strict=True):
                master.copy_(whole_n[own])
        self.sync.load_state_dict(state["sync"])

    @staticmethod
    def _part(value: Any, own: slice, numel: int) -> Any:
        whole = isinstance(value, Tensor) and value.dim() == 1 and value.numel() == numel
        return value[own].clone() if whole else value


class ShardedUpdate(Update):
    """Of parts: a norm is that of all of them."""

    def __init__(self, sync: ShardedSync, *given: Any):
        super().__init__(*given)
        self.sync = sync

    def _clip(self) -> None:
        """As torch.nn.utils.clip_grad_norm_ does, by another order of additions."""
        workers = self.sync.workers
        norm_N = torch.zeros(workers.world_size, dtype=torch.float64, device=self.parameters[0].device)
        for worker, of_worker in zip(workers.mine, self.sync.shards_of_mine, strict=True):
            for p, (part, own) in enumerate(zip(of_worker, self.sync.owned, strict=True)):
                of_part = self.parameters[p].grad[part.start - own.start : part.stop - own.start]
                norm_N[worker] += of_part.double().square().sum()
        norm = workers.sum_of_disjoint(norm_N).sum().sqrt()
        factor = torch.clamp(self.clip_norm / (norm + 1e-6), max=1.0).float()
        torch._foreach_mul_([p.grad for p in self.parameters], factor)


def _is_part(value: Any, master: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and value.shape == master.shape
