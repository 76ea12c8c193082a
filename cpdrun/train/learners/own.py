"""Workers with weights and optimizers of their own, which gossip after every step (`cpdrun.comm.gossip.base`).

All weights stand in one tensor x_WxD, a row a worker (`cpdrun.comm.gossip.rows`); there is one model, which plays a
worker by taking that worker's rows and buffers as its own, without a copy.

exact    one worker after the other: no split of the workers over processes changes a bit
batched  the gradients of all W in one pass of torch.func.vmap, equal but for the last bits

What a run reports: test metrics are the mean over the workers, each evaluated on sync.worker_test_samples; *_worst
is that of the worst worker, *_averaged_model that of the mean of all weights, on all test data; consensus_distance is
sqrt(mean_i |x_i - x_mean|^2), bytes_sent_per_worker what a worker has sent so far.

Legend: N workers, W of them on this rank, B samples a worker, P parameters, D values in a row.
"""

import copy
import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cpdrun.comm.gossip.rows import Rows
from cpdrun.comm.gossip.topology.mixing import mean_gap
from cpdrun.comm.workers import Workers
from cpdrun.data.base import fetch_batch
from cpdrun.train.build import Parts
from cpdrun.train.learners.gradients import Objective, naming_the_layer
from cpdrun.train.learners.shared import Learner, evaluate_on, set_rates
from cpdrun.train.loss import training_loss
from cpdrun.train.precision.activations import activation_bytes
from cpdrun.train.seeds import seed_global
from cpdrun.train.state import checkpoint

LOWER_IS_BETTER = ("loss", "bits_per", "perplexity")


class OwnWeights(Learner):
    """N models and N optimizers; a Gossip rule brings them together."""

    def __init__(self, config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device):
        self.parts, self.workers, self.device, self.gossip = parts, workers, device, parts.sync
        self.clip_norm, self.layers = config["clip_norm"], {}
        self.model, self.parameters = parts.model, list(parts.model.parameters())
        self.buffers = [buffer for buffer in parts.model.buffers() if buffer.numel()]
        W = len(workers.mine)
        self.rows = Rows([p.shape for p in self.parameters])
        self.x_WxD = self.rows.zeros(W, device)
        for row in self.x_WxD:
            torch._foreach_copy_(self.rows.parameters(row), [p.detach() for p in self.parameters])
        self.buffers_BxW = [buffer.expand(W, *buffer.shape).clone() for buffer in self.buffers]
        self.own = [[nn.Parameter(view) for view in self.rows.parameters(row)] for row in self.x_WxD]
        self.optimizers = [parts.make_optimizer(parameters) for parameters in self.own]
        self.precisions = [copy.deepcopy(parts.precision) for _ in workers.mine]
        self.base_lrs = [group["lr"] for group in self.optimizers[0].param_groups]
        N, B = config["world_size"], config["batch_size"]
        self.batch_size = B
        self.last_step = config["epochs"] * (len(parts.data.train) // (N * B)) - 1
        loss = partial(training_loss, label_smoothing=config["label_smoothing"])
        self.objective = Objective(parts.model, parts.batches, workers, loss)
        self.gradients = (BatchedOwn if config["emulation"] == "batched" else ExactOwn)(self)
        self.gossip.begin(self.rows, self.x_WxD)
        parts.model.train()

    def step(self, index_NxB: Tensor, *, step: int, epoch: int, lr_factor: float, look: bool) -> Tensor:
        self.gossip.before_step(self.x_WxD, step=step, epoch=epoch)
        scales = [precision.loss_scale.value for precision in self.precisions]
        losses, nonfinite = [], 0
        for w, (loss, gradient) in enumerate(self.gradients(index_NxB, step, scales)):
            losses.append(loss)
            nonfinite += self._apply(w, gradient, scales[w], lr_factor)
        lr = self.base_lrs[0] * lr_factor
        self.gossip.after_step(self.x_WxD, lr=lr, step=step, epoch=epoch)
        if step == self.last_step:
            self.gossip.close(self.x_WxD, step=step, epoch=epoch)
        count = torch.tensor(nonfinite, dtype=torch.int64, device=self.device)
        self.nonfinite = int(self.workers.sum_of_disjoint(count))
        return torch.stack(losses)

    def _apply(self, w: int, gradient: list[Tensor], scale: float, lr_factor: float) -> int:
        """My w-th worker's own step; the number of elements of its gradient that are not finite."""
        optimizer, precision, parameters = self.optimizers[w], self.precisions[w], self.own[w]
        finite = bool(torch.isfinite(torch.stack([g.sum() for g in gradient])).all())
        nonfinite = 0 if finite else sum(int((~torch.isfinite(g)).sum()) for g in gradient)
        set_rates(optimizer, self.base_lrs, lr_factor)
        if precision.loss_scale.accept(nonfinite):
            if scale != 1:
                torch._foreach_div_(gradient, scale)
            for parameter, g in zip(parameters, gradient, strict=True):
                parameter.grad = g
            if self.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm)
            self.gossip.correct(w, gradient, self._decay(w) if self.gossip.nesterov else ())
            precision.step(optimizer, parameters)
        else:
            precision.skip()
        return nonfinite

    def _decay(self, w: int) -> list[Tensor]:
        """What weight decay adds to each gradient of my w-th worker."""
        of = {
            id(parameter): group["weight_decay"]
            for group in self.optimizers[w].param_groups
            for parameter in group["params"]
        }
        return [parameter.detach() * of[id(parameter)] for parameter in self.own[w]]

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

    def play(self, w: int) -> None:
        """The model is my w-th worker from here on: what changes its weights and buffers changes that worker's."""
        self._become(self.rows.parameters(self.x_WxD[w]), [stack[w] for stack in self.buffers_BxW])

    def _become(self, weights: list[Tensor], buffers: list[Tensor]) -> None:
        for slot, value in zip([*self.parameters, *self.buffers], [*weights, *buffers], strict=True):
            slot.data = value

    # ---- metrics

    def evaluate(self) -> dict[str, float]:
        alone = Workers(1)
        mine = []
        for w in range(len(self.workers.mine)):
            self.play(w)
            mine.append(evaluate_on(self.parts, alone, self.device, self.gossip.worker_test_samples))
        names = list(mine[0])
        table_NxK = torch.zeros(self.workers.world_size, len(names), dtype=torch.float64, device=self.device)
        for worker, metrics in zip(self.workers.mine, mine, strict=True):
            table_NxK[worker] = torch.tensor([metrics[name] for name in names], dtype=torch.float64)
        by_name = dict(zip(names, self.workers.sum_of_disjoint(table_NxK).unbind(1), strict=True))
        mean_D = self._mean()
        self._become(self.rows.parameters(mean_D), [self._mean_buffer(stack) for stack in self.buffers_BxW])
        averaged = evaluate_on(self.parts, self.workers, self.device)
        return (
            {name: values_N.mean().item() for name, values_N in by_name.items()}
            | {f"{name}_worst": _worst(name, values_N) for name, values_N in by_name.items()}
            | {f"{name}_averaged_model": value for name, value in averaged.items()}
            | {"consensus_distance": self._distance(mean_D), "bytes_sent_per_worker": self.gossip.bytes_sent}
        )

    def _mean(self) -> Tensor:
        """The mean of all workers' weights (D,), summed in float64 in the order of the workers. Collective."""
        return self._sum_in_order(self.x_WxD).div_(self.workers.world_size).float()

    def _mean_buffer(self, stack: Tensor) -> Tensor:
        """The mean of a buffer over all workers, of whole numbers cut down to one. Collective."""
        total = self._sum_in_order(stack)
        return total.div_(self.workers.world_size).to(stack.dtype)

    def _sum_in_order(self, stack: Tensor) -> Tensor:
        """Sum over the N workers, float64; their rows go round one by one. Collective."""
        total = torch.zeros(stack.shape[1:], dtype=torch.float64, device=self.device)
        first = self.workers.mine.start
        for worker in range(self.workers.world_size):
            owner = self.workers.owner(worker)
            row = stack[worker - first].clone() if owner == self.workers.rank else torch.empty_like(stack[0])
            if self.workers.ranks > 1:
                dist.broadcast(row, src=owner)
            total += row
        return total

    def _distance(self, mean_D: Tensor) -> float:
        squares_N = torch.zeros(self.workers.world_size, dtype=torch.float64, device=self.device)
        for worker, x_D in zip(self.workers.mine, self.x_WxD, strict=True):
            squares_N[worker] = (x_D - mean_D).double().square().sum()
        return self.workers.sum_of_disjoint(squares_N).mean().sqrt().item()

    def memory(self) -> dict[str, int]:
        """With what the gossip rule remembers, gossip_bytes, and what a batch leaves for the backward pass,
        activation_bytes."""
        self.play(0)
        x_BxF, _ = fetch_batch(self.parts.data.train, torch.arange(self.batch_size))
        bits = getattr(self.precisions[0], "activation_bits", None)
        return self.precisions[0].memory(self.optimizers[0], self.own[0]) | {
            "gossip_bytes": 4 * sum(self.rows.numels) * len(self.gossip.memory),
            "activation_bytes": activation_bytes(self.model, x_BxF.to(self.device), bits),
        }

    # ---- the checkpoint

    def state_dict(self) -> dict[str, Any]:
        mine = {
            worker: {
                "weights": [p.detach().clone() for p in self.own[w]],
                "buffers": [stack[w].clone() for stack in self.buffers_BxW],
                "optimizer": self.optimizers[w].state_dict(),
                "precision": self.precisions[w].state_dict(),
            }
            for w, worker in enumerate(self.workers.mine)
        }
        return {"workers": self.workers.gather(mine), "sync": self.gossip.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for w, worker in enumerate(self.workers.mine):
                kept = state["workers"][worker]
                torch._foreach_copy_(self.own[w], kept["weights"])
                for stack, buffer in zip(self.buffers_BxW, kept["buffers"], strict=True):
                    stack[w].copy_(buffer)
                self.optimizers[w].load_state_dict(kept["optimizer"])
                self.precisions[w].load_state_dict(kept["precision"])
        self.gossip.load_state_dict(state["sync"])

    def weights_sha256(self) -> str:
        """Digest of the workers' digests, in their order."""
        table_Nx32 = torch.zeros(self.workers.world_size, 32, dtype=torch.int32, device=self.device)
        for w, worker in enumerate(self.workers.mine):
            self.play(w)
            digest = bytes.fromhex(checkpoint.weights_sha256(self.model))
            table_Nx32[worker] = torch.tensor(list(digest), dtype=torch.int32)
        digests = bytes(self.workers.sum_of_disjoint(table_Nx32).flatten().tolist())
        return hashlib.sha256(digests).hexdigest()


class ExactOwn:
    """Each worker's loss () and gradients, one worker after the other, at weights of its own."""

    def __init__(self, learner: OwnWeights):
        self.learner = learner

    def __call__(
        self, index_NxB: Tensor, step: int, scales: list[float]
    ) -> Iterator[tuple[Tensor, list[Tensor]]]:
        learner, objective = self.learner, self.learner.objective
        for w, worker in enumerate(objective.workers.mine):
            learner.play(w)
            x, y = objective.batches.fetch(index_NxB[worker], step, worker)
            seed_global(objective.device, "dropout", objective.seed, step, worker)
            loss = objective.loss(objective.model(x), y)
            gradient = torch.autograd.grad(loss * scales[w], learner.parameters, materialize_grads=True)
            yield loss.detach(), list(gradient)


class BatchedOwn:
    """The same in one pass. Raises CannotBatchError at the first step of a model that no vmap can run; dropout draws
    from (seed, step, rank)."""

    def __init__(self, learner: OwnWeights):
        self.learner, objective = learner, learner.objective
        self.names = [name for name, _ in objective.model.named_parameters()]
        self.buffer_names = [name for name, buffer in objective.model.named_buffers() if buffer.numel()]
        self.tried = False

        def loss_of_worker(parameters, buffers, scale, x_BxF, y_B):
            loss = objective.loss(functional_call(objective.model, (parameters, buffers), (x_BxF,)), y_B)
            return loss * scale, loss

        self._gradients = vmap(grad(loss_of_worker, has_aux=True), randomness="different")

    def __call__(
        self, index_NxB: Tensor, step: int, scales: list[float]
    ) -> Iterator[tuple[Tensor, list[Tensor]]]:
        learner, objective = self.learner, self.learner.objective
        batches = [
            objective.batches.fetch(index_NxB[worker], step, worker) for worker in objective.workers.mine
        ]
        x_WxBxF, y_WxB = (torch.stack(parts) for parts in zip(*batches, strict=True))
        parameters = dict(zip(self.names, learner.rows.stacked(learner.x_WxD), strict=True))
        buffers = dict(zip(self.buffer_names, learner.buffers_BxW, strict=True))
        scale_W = torch.tensor(scales, device=objective.device)
        seed_global(objective.device, "dropout", objective.seed, step, objective.workers.rank)
        with nullcontext() if self.tried else naming_the_layer(objective.model):
            gradients, losses_W = self._gradients(parameters, buffers, scale_W, x_WxBxF, y_WxB)
        self.tried = True
        for w, loss in enumerate(losses_W):
            yield loss, [gradients[name][w] for name in self.names]


def _worst(name: str, values_N: Tensor) -> float:
    lower = any(word in name for word in LOWER_IS_BETTER)
    return (values_N.max() if lower else values_N.min()).item()
