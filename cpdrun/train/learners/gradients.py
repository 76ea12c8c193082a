"""The gradients of the workers that this process plays.

Legend: W workers of this rank, N workers in all, B samples a worker, P parameters.

exact    one worker after the other, each as a machine of its own would compute: the guarantee that no split
         of the workers changes a bit rests on it
batched  all W in one pass of torch.func.vmap over grad: many small workers at the cost of one large batch,
         equal to exact but for the last bits (kernels sum batches in another order)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cpdrun.comm.workers import Workers
from cpdrun.train.batches import Batches
from cpdrun.train.learners.buffers import SharedBuffers
from cpdrun.train.memory import in_short, shortage
from cpdrun.train.seeds import seed_global

Loss = Callable[[Tensor, Tensor], Tensor]  # logits (B, K, ...), targets (B, ...) -> mean loss ()


class CannotBatchError(Exception):
    """A layer of the model does not allow batching over workers; the message names it."""


@dataclass(frozen=True)
class Objective:
    """What the gradients are of."""

    model: nn.Module
    batches: Batches
    workers: Workers
    loss: Loss = F.cross_entropy
    loss_scale: Callable[[], float] = lambda: 1.0  # gradients are those of loss * loss_scale()

    @property
    def seed(self) -> int:
        return self.batches.seed

    @property
    def device(self) -> torch.device:
        return self.batches.device


class ExactGradients:
    """One worker after the other."""

    def __init__(self, objective: Objective):
        self.objective = objective
        self.parameters = list(objective.model.parameters())
        self.buffers = SharedBuffers(objective.model, objective.workers)
        W = len(objective.workers.mine)
        self.gradients_WxP = [p.new_empty(W, *p.shape) for p in self.parameters] if W > 1 else []
        self.gradients_of_w = [[of_worker[w] for of_worker in self.gradients_WxP] for w in range(W)]

    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        objective, losses, scale = self.objective, [], self.objective.loss_scale()
        self.buffers.begin_step()
        for w, worker in enumerate(objective.workers.mine):
            self.buffers.begin_worker(worker)
            x, y = objective.batches.fetch(index_NxB[worker], step, worker)
            seed_global(objective.device, "dropout", objective.seed, step, worker)
            loss = objective.loss(objective.model(x), y)
            scaled = loss if scale == 1 else loss * scale
            gradient = torch.autograd.grad(scaled, self.parameters, materialize_grads=True)
            losses.append(loss.detach())
            gradient = _divided(gradient, objective.workers.world_size)
            if self.gradients_WxP:
                torch._foreach_copy_(self.gradients_of_w[w], gradient)
            self.buffers.end_worker(worker)
        self.buffers.end_step()
        return torch.stack(losses), self.gradients_WxP or [g.unsqueeze(0) for g in gradient]


def _divided(gradients: Sequence[Tensor], N: int) -> Sequence[Tensor]:
    return gradients if N == 1 else torch._foreach_div(gradients, N)


class BatchedGradients:
    """All workers of this rank in one pass. Raises CannotBatchError at the first step of a model that no
    vmap can run.

    Dropout draws one mask for all workers from (seed, step, rank) where exact draws one per worker.
    """

    def __init__(self, objective: Objective):
        self.objective, self.model = objective, objective.model
        self.shared = SharedBuffers(objective.model, objective.workers)
        self.tried = False  # what vmap cannot run fails at the first step

        def loss_of_worker(parameters, buffers, scale, x_BxF, y_B):
            loss = objective.loss(functional_call(objective.model, (parameters, buffers), (x_BxF,)), y_B)
            return loss * scale, loss

        self._gradients = vmap(
            grad(loss_of_worker, has_aux=True), in_dims=(None, 0, None, 0, 0), randomness="different"
        )

    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        objective, workers = self.objective, self.objective.workers
        batches = [objective.batches.fetch(index_NxB[worker], step, worker) for worker in workers.mine]
        x_WxBxF, y_WxB = (torch.stack(parts) for parts in zip(*batches, strict=True))
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        W = len(workers.mine)
        buffers_W = {name: b.expand(W, *b.shape).clone() for name, b in self.model.named_buffers()}
        seed_global(objective.device, "dropout", objective.seed, step, workers.rank)
        with nullcontext() if self.tried else naming_the_layer(self.model):
            gradients_W, losses_W = self._gradients(
                parameters, buffers_W, objective.loss_scale(), x_WxBxF, y_WxB
            )
        self.tried = True
        self._follow_worker_0(buffers_W)
        return losses_W, [gradients_W[name].div_(workers.world_size) for name in parameters]

    def _follow_worker_0(self, buffers_W: dict[str, Tensor]) -> None:
        self.shared.begin_step()
        if self.objective.workers.rank == 0:
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers_W[name][0])
        self.shared.end_worker(self.objective.workers.mine[0])
        self.shared.end_step()


EMULATIONS = {"exact": ExactGradients, "batched": BatchedGradients}


@contextmanager
def naming_the_layer(model: nn.Module) -> Iterator[None]:
    """Where vmap fails, say in which layer: the one entered last and not left."""
    entered: list[tuple[str, nn.Module]] = []
    hooks = []

    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, _: Any) -> None:
        entered.append((names[module], module))

    def leave(*_: Any) -> None:  # a hook that returned something would replace the layer's output
        entered.pop()

    for module in names:
        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    except (RuntimeError, ValueError, TypeError) as error:
        name, module = entered[-1] if entered else ("", model)
        where = f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__
        if (cause := shortage(error)) is not None:
            raise MemoryError(
                f"emulation=batched: {where}: {in_short(cause)}; emulation=exact takes one worker at a time"
            ) from error
        reason = str(error).split(". ")[0].splitlines()[0]
        raise CannotBatchError(
            f"emulation=batched: {where} cannot be batched over workers ({reason}); use emulation=exact"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
