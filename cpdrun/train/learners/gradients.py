"""The gradients of the workers that this process plays.

Legend: W workers of this rank, N workers in all, B samples a worker, P parameters.

exact    one worker after the other, each as a machine of its own would compute: the guarantee that no split
         of the workers changes a bit rests on it
batched  all W in one pass of torch.func.vmap over grad: many small workers at the cost of one large batch,
         equal to exact but for the last bits (kernels sum batches in another order, and in another one where
         the workers are split differently)
chunked  passes over CHUNK workers, of all N and not of these W: as fast as batched, and no split of the workers
         changes a bit, for a worker is always computed in the same pass. A process plays whole passes, and drops
         what others' workers gave.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from cpdrun.comm.workers import Workers
from cpdrun.errors import UserError
from cpdrun.optim.groups import trainable
from cpdrun.tasks.base import Task
from cpdrun.train.batches import Batches
from cpdrun.train.learners.played import Played
from cpdrun.train.memory import in_short, shortage
from cpdrun.train.seeds import seed_global

CHUNK = 16
"""Workers in one pass of emulation=chunked. It decides the last bits, so it is no setting. More: faster for many small
workers; but processes that share a pass each compute all of it."""


class CannotBatchError(UserError):
    """A layer of the model does not allow batching over workers; the message names it."""


@dataclass(frozen=True)
class Objective:
    """What the gradients are of."""

    played: Played
    batches: Batches
    task: Task
    scale: Callable[[int], float] = lambda w: 1.0  # my w-th worker's gradients are of its loss * scale(w)

    @property
    def workers(self) -> Workers:
        return self.played.workers

    @property
    def device(self) -> torch.device:
        return self.batches.device

    @property
    def summands(self) -> int:
        """Gradients are divided by it, so that where workers share weights their sum is the mean."""
        return 1 if self.played.own else self.workers.world_size

    def divide_(self, gradients: Sequence[Tensor]) -> None:
        """By `summands`. No two of them may be one tensor."""
        if self.summands > 1:
            torch._foreach_div_(gradients, self.summands)


class Gradients(ABC):
    """Of a step, each worker's own."""

    plays: range
    """The workers whose batches this rank fetches: its own, or more."""

    @abstractmethod
    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        """Losses (W,) and (W, ...) gradients of each parameter. Collective."""


class ExactGradients(Gradients):
    """One worker after the other."""

    def __init__(self, objective: Objective):
        self.objective, played = objective, objective.played
        self.plays = objective.workers.mine
        self.parameters = list(trainable(played.model).values())
        W = len(objective.workers.mine)
        # workers of their own change their gradients in place, and autograd may give one tensor for two parameters
        kept = self.parameters if W > 1 or played.own else []
        self.gradients_WxP = [p.new_empty(W, *p.shape) for p in kept]
        self.gradients_of_w = [[of_worker[w] for of_worker in self.gradients_WxP] for w in range(W)]

    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        objective, played, losses = self.objective, self.objective.played, []
        played.begin_step()
        for w, worker in enumerate(objective.workers.mine):
            played.begin_worker(w)
            batch = objective.batches.fetch(index_NxB[worker], step, worker)
            seed_global(objective.device, "dropout", objective.batches.seed, step, worker)
            loss = objective.task.loss_of(played.model, batch)
            scale = objective.scale(w)
            scaled = loss if scale == 1 else loss * scale
            gradient = torch.autograd.grad(scaled, self.parameters, materialize_grads=True)
            losses.append(loss.detach())
            if self.gradients_WxP:
                torch._foreach_copy_(self.gradients_of_w[w], gradient)
            played.end_worker(w)
        played.end_step()
        if not self.gradients_WxP:
            # as autograd gave them, where one tensor may stand for two parameters: not in place
            if objective.summands > 1:
                gradient = torch._foreach_div(gradient, objective.summands)
            return torch.stack(losses), [g.unsqueeze(0) for g in gradient]
        objective.divide_(self.gradients_WxP)
        return torch.stack(losses), self.gradients_WxP


class BatchedGradients(Gradients):
    """All workers of this rank in one pass. Raises CannotBatchError at the first step of a model that no
    vmap can run.

    Dropout draws one mask for all workers of a pass from (seed, step, its number) where exact draws one per worker.
    """

    name = "batched"

    def __init__(self, objective: Objective):
        self.objective, played = objective, objective.played
        self.passes = self._passes(objective.workers)
        self.plays = range(
            min(p.start for p in self.passes.values()), max(p.stop for p in self.passes.values())
        )
        self.tried = False  # what vmap cannot run fails at the first step

        def loss_of_worker(parameters, buffers, scale, batch):
            def model(*args, **kwargs):
                return functional_call(played.model, (parameters, buffers), args, kwargs)

            loss = objective.task.loss_of(model, batch)
            return loss * scale, loss

        of_each = 0 if played.own else None
        self._gradients = vmap(
            grad(loss_of_worker, has_aux=True), in_dims=(of_each, 0, of_each, 0), randomness="different"
        )

    def _passes(self, workers: Workers) -> dict[int, range]:
        """The workers of each pass, by its number."""
        return {workers.rank: workers.mine}

    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        (number,) = self.passes
        losses_W, gradients_WxP, buffers_W = self._pass(number, index_NxB, step)
        self.objective.played.took(buffers_W)
        self.objective.divide_(gradients_WxP)
        return losses_W, gradients_WxP

    def _pass(
        self, number: int, index_NxB: Tensor, step: int
    ) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        """Losses (W,), gradients (W, ...) of each parameter and buffers (W, ...) of the W workers of one pass."""
        objective, played, workers = self.objective, self.objective.played, self.passes[number]
        batches = [objective.batches.fetch(index_NxB[worker], step, worker) for worker in workers]
        batch_W = tree_map(lambda *tensors: torch.stack(tensors), *batches)
        parameters, buffers_W = played.stacked(workers)
        first = objective.workers.mine.start
        scale: Any = objective.scale(0)
        if played.own:
            scale = torch.tensor([objective.scale(w - first) for w in workers], device=objective.device)
        seed_global(objective.device, "dropout", objective.batches.seed, step, number)
        with nullcontext() if self.tried else naming_the_layer(played.model, self.name):
            gradients_W, losses_W = self._gradients(parameters, buffers_W, scale, batch_W)
        self.tried = True
        return losses_W, [gradients_W[name] for name in parameters], buffers_W


class ChunkedGradients(BatchedGradients):
    """Passes over CHUNK workers of all N (the last over what is left), the same for any split: workers c * CHUNK and
    those after it are pass c. A rank with part of a pass's workers computes it whole, on all their batches.

    Raises UserError for workers with weights of their own, where a pass would need those of another rank.
    """

    name = "chunked"

    def __init__(self, objective: Objective):
        super().__init__(objective)
        W, parameters = len(objective.workers.mine), trainable(objective.played.model).values()
        if objective.played.own and len(self.plays) > W:
            raise UserError(
                f"emulation=chunked: each {CHUNK} workers with weights of their own are played by one process, and "
                f"nproc={objective.workers.ranks} gives it {W}; take a smaller nproc or emulation=exact"
            )
        # always laid out alike: what is summed over them later must not depend on the split either
        self.gradients_WxP = [p.new_empty(W, *p.shape) for p in parameters]

    def _passes(self, workers: Workers) -> dict[int, range]:
        mine, N = workers.mine, workers.world_size
        numbers = range(mine.start // CHUNK, (mine.stop - 1) // CHUNK + 1)
        return {c: range(c * CHUNK, min((c + 1) * CHUNK, N)) for c in numbers}

    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        objective, mine, losses, of_worker_0 = self.objective, self.objective.workers.mine, [], None
        for number, workers in self.passes.items():
            losses_W, gradients_WxP, buffers_W = self._pass(number, index_NxB, step)
            of_worker_0 = of_worker_0 or buffers_W  # where this rank plays it, the first pass has it
            start, stop = max(mine.start, workers.start), min(mine.stop, workers.stop)
            of_pass = slice(start - workers.start, stop - workers.start)
            here = [stack[start - mine.start : stop - mine.start] for stack in self.gradients_WxP]
            torch._foreach_copy_(here, [g[of_pass] for g in gradients_WxP])
            losses.append(losses_W[of_pass])
        objective.played.took(of_worker_0)
        objective.divide_(self.gradients_WxP)
        return torch.cat(losses), self.gradients_WxP


EMULATIONS = {"exact": ExactGradients, "batched": BatchedGradients, "chunked": ChunkedGradients}


@contextmanager
def naming_the_layer(model: nn.Module, emulation: str) -> Iterator[None]:
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
                f"emulation={emulation}: {where}: {in_short(cause)}; emulation=exact takes one worker at a time"
            ) from error
        reason = str(error).split(". ")[0].splitlines()[0]
        raise CannotBatchError(
            f"emulation={emulation}: {where} cannot be batched over workers ({reason}); use emulation=exact"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
