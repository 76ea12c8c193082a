"""The gradients of the workers that this process emulates.

Shapes: N workers in all, W of them on this rank, B samples per worker, P parameters.

exact    The gradients of workers are computed one after the other, as on separate machines. Therefore, the bits do not
         depend on the split of the workers.
batched  The gradients of all W workers are computed in one pass of torch.func.vmap over grad. Many small workers then
         take as much time as one large batch. The result differs from that of exact in the last bits, because kernels
         sum batches in another order, which also depends on the split of the workers.
chunked  Each pass computes CHUNK workers, counted from the first of all N workers. This is as fast as batched, and the
         bits do not depend on the split of the workers, because a worker is always computed in the same pass. A process
         computes whole passes and discards the results of other processes' workers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.hooks import RemovableHandle

from cpdrun.comm.workers import Workers
from cpdrun.errors import UserError
from cpdrun.optim.groups import trainable
from cpdrun.tasks.base import Task
from cpdrun.train.batches import Batches
from cpdrun.train.instantiate import find_memory_error, first_line
from cpdrun.train.learners.emulated_workers import EmulatedWorkers
from cpdrun.train.seeds import seed_global

CHUNK = 16
"""The number of workers in one pass of emulation=chunked.

This number affects the last bits, so it is not a setting. A larger value is faster for many small workers, but each
process that has any worker of a pass must compute the whole pass.
"""


class CannotBatchError(UserError):
    """Raised if a layer of the model cannot be batched over workers. The message names the layer."""


@dataclass(frozen=True)
class Objective:
    """The function whose gradients are computed.

    Attributes:
        emulated: The model and its workers.
        batches: The training batches.
        task: The task, which computes the loss.
        scale: Returns the loss scale of the w-th worker of this rank.
    """

    emulated: EmulatedWorkers
    batches: Batches
    task: Task
    scale: Callable[[int], float] = lambda w: 1.0

    @property
    def workers(self) -> Workers:
        """The assignment of the N workers to ranks."""
        return self.emulated.workers

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.batches.device

    @property
    def divisor(self) -> int:
        """The divisor of gradients: N if workers share weights, so that the sum of their gradients is the mean."""
        return 1 if self.emulated.separate_weights else self.workers.world_size

    def divide_(self, gradients: list[Tensor]) -> None:
        """Divide gradients by `divisor`, in place. They must be distinct tensors."""
        if self.divisor > 1:
            torch._foreach_div_(gradients, self.divisor)


class Gradients(ABC):
    """Computes the gradients of each worker of this rank.

    Attributes:
        fetched_workers: The workers whose batches this rank fetches: its own, or more.
    """

    fetched_workers: range

    @abstractmethod
    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        """Return the losses, of shape (W,), and the gradients of each parameter, of shape (W, ...). Collective."""


class ExactGradients(Gradients):
    """Computes one worker after the other."""

    def __init__(self, objective: Objective):
        self.objective, emulated = objective, objective.emulated
        self.fetched_workers = objective.workers.local
        self.parameters = list(trainable(emulated.model).values())
        W = len(objective.workers.local)
        # A single worker with shared weights needs no copy of the gradients that autograd returns. In all other cases,
        # gradients may be changed in place, and autograd may return the same tensor for two parameters.
        copied = self.parameters if W > 1 or emulated.separate_weights else []
        self.gradients_WxP = [p.new_empty(W, *p.shape) for p in copied]
        self.gradients_of_w = [[stack[w] for stack in self.gradients_WxP] for w in range(W)]

    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        objective, emulated, losses = self.objective, self.objective.emulated, []
        emulated.begin_step()
        for w, worker in enumerate(objective.workers.local):
            emulated.begin_worker(w)
            batch = objective.batches.fetch(index_NxB[worker], step, worker)
            seed_global(objective.device, "dropout", objective.batches.seed, step, worker)
            loss = objective.task.loss_of(emulated.model, batch)
            scale = objective.scale(w)
            scaled = loss if scale == 1 else loss * scale
            gradient = torch.autograd.grad(scaled, self.parameters, materialize_grads=True)
            losses.append(loss.detach())
            if self.gradients_WxP:
                torch._foreach_copy_(self.gradients_of_w[w], gradient)
            emulated.end_worker(w)
        emulated.end_step()
        if not self.gradients_WxP:
            # Do not divide in place, because autograd may have returned the same tensor for two parameters.
            if objective.divisor > 1:
                gradient = torch._foreach_div(gradient, objective.divisor)
            return torch.stack(losses), [g.unsqueeze(0) for g in gradient]
        objective.divide_(self.gradients_WxP)
        return torch.stack(losses), self.gradients_WxP


class BatchedGradients(Gradients):
    """Computes the gradients of all workers of this rank in one pass.

    Dropout draws the masks of all workers of a pass at once. They depend on (seed, step, number of the pass).

    Raises:
        CannotBatchError: vmap cannot run the model. This error is raised at the first step.
    """

    name = "batched"

    def __init__(self, objective: Objective):
        self.objective, emulated = objective, objective.emulated
        self.passes = self._passes(objective.workers)
        self.fetched_workers = range(
            min(p.start for p in self.passes.values()), max(p.stop for p in self.passes.values())
        )
        self.has_run = False  # whether vmap has run once. It fails either at the first step or never.

        def loss_of_worker(parameters, buffers, scale, batch):
            def model(*args, **kwargs):
                return functional_call(emulated.model, (parameters, buffers), args, kwargs)

            loss = objective.task.loss_of(model, batch)
            return loss * scale, loss

        batch_dim = 0 if emulated.separate_weights else None
        self._gradients = vmap(
            grad(loss_of_worker, has_aux=True), in_dims=(batch_dim, 0, batch_dim, 0), randomness="different"
        )

    def _passes(self, workers: Workers) -> dict[int, range]:
        """Return the workers of each pass, by its number."""
        return {workers.rank: workers.local}

    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        (number,) = self.passes
        losses_W, gradients_WxP, buffers_W = self._pass(number, index_NxB, step)
        self.objective.emulated.set_buffers(buffers_W)
        self.objective.divide_(gradients_WxP)
        return losses_W, gradients_WxP

    def _pass(
        self, number: int, index_NxB: Tensor, step: int
    ) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        """Return the losses (W,), gradients (W, ...) and buffers (W, ...) of the workers of one pass."""
        objective, emulated, workers = self.objective, self.objective.emulated, self.passes[number]
        batch_W = objective.batches.fetch_stacked(index_NxB, step, workers)
        parameters, buffers_W = emulated.stacked(workers)
        first = objective.workers.local.start
        scale: Any = objective.scale(0)
        if emulated.separate_weights:
            scale = torch.tensor([objective.scale(w - first) for w in workers], device=objective.device)
        seed_global(objective.device, "dropout", objective.batches.seed, step, number)
        with nullcontext() if self.has_run else naming_the_layer(emulated.model, self.name):
            gradients_W, losses_W = self._gradients(parameters, buffers_W, scale, batch_W)
        self.has_run = True
        return losses_W, [gradients_W[name] for name in parameters], buffers_W


class ChunkedGradients(BatchedGradients):
    """Computes passes over CHUNK of all N workers. Pass c begins with worker c * CHUNK. The last pass may be smaller.

    A rank that emulates only some workers of a pass computes the whole pass, with the batches of all its workers.

    Raises:
        UserError: Workers have separate weights, and a pass would need weights of another rank.
    """

    name = "chunked"

    def __init__(self, objective: Objective):
        super().__init__(objective)
        W, parameters = len(objective.workers.local), trainable(objective.emulated.model).values()
        if objective.emulated.separate_weights and len(self.fetched_workers) > W:
            raise UserError(
                f"emulation=chunked: one process must emulate {CHUNK} workers with separate weights, and with "
                f"nproc={objective.workers.ranks} it has {W}. Set a smaller nproc or emulation=exact"
            )
        # The memory layout must always be the same, so that later sums do not depend on the split of the workers.
        self.gradients_WxP = [p.new_empty(W, *p.shape) for p in parameters]

    def _passes(self, workers: Workers) -> dict[int, range]:
        mine, N = workers.local, workers.world_size
        numbers = range(mine.start // CHUNK, (mine.stop - 1) // CHUNK + 1)
        return {c: range(c * CHUNK, min((c + 1) * CHUNK, N)) for c in numbers}

    def __call__(self, index_NxB: Tensor, step: int) -> tuple[Tensor, list[Tensor]]:
        objective, mine, losses = self.objective, self.objective.workers.local, []
        first_buffers: dict[str, Tensor] = {}
        for number, workers in self.passes.items():
            losses_W, gradients_WxP, buffers_W = self._pass(number, index_NxB, step)
            first_buffers = first_buffers or buffers_W  # Only the first pass can contain worker 0.
            start, stop = max(mine.start, workers.start), min(mine.stop, workers.stop)
            own = slice(start - workers.start, stop - workers.start)
            targets = [stack[start - mine.start : stop - mine.start] for stack in self.gradients_WxP]
            torch._foreach_copy_(targets, [g[own] for g in gradients_WxP])
            losses.append(losses_W[own])
        objective.emulated.set_buffers(first_buffers)
        objective.divide_(self.gradients_WxP)
        return torch.cat(losses), self.gradients_WxP


EMULATIONS: dict[str, Callable[[Objective], Gradients]] = {
    "exact": ExactGradients,
    "batched": BatchedGradients,
    "chunked": ChunkedGradients,
}


@contextmanager
def naming_the_layer(model: nn.Module, emulation: str) -> Iterator[None]:
    """If vmap fails, raise an error that names the layer that was being called."""
    entered: list[tuple[str, nn.Module]] = []
    hooks: list[RemovableHandle] = []
    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, _: Any) -> None:
        entered.append((names[module], module))

    def leave(*_: Any) -> None:  # It must return None, because any other value would replace the output.
        entered.pop()

    for module in names:
        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    except (RuntimeError, ValueError, TypeError) as error:
        name, module = entered[-1] if entered else ("", model)
        where = f"layer {name!r} ({type(module).__name__})" if name else type(module).__name__
        if (cause := find_memory_error(error)) is not None:
            raise MemoryError(
                f"emulation={emulation}: {where}: {first_line(cause)}; emulation=exact computes one worker at a time"
            ) from error
        reason = str(error).split(". ")[0].splitlines()[0]
        raise CannotBatchError(
            f"emulation={emulation}: {where} cannot be batched over workers ({reason}). Use emulation=exact"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
