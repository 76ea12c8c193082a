"""The models of the workers that one rank emulates.

A rank has one model. To emulate a worker, it replaces the weights and buffers of the model by those of the worker.

Shapes: N workers, W of them on this rank, D values in a row, B buffers.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cpdrun.comm.gossip.base import WeightLayout
from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable


class EmulatedWorkers:
    """The base class of models that emulate W workers.

    Attributes:
        model: The model.
        workers: How the N workers are split over ranks.
        separate_weights: Whether each worker has separate weights.
    """

    model: nn.Module
    workers: Workers
    separate_weights: bool

    def begin_step(self) -> None:
        """Prepare for the first worker of a step."""

    def begin_worker(self, w: int) -> None:
        """Replace the model's state by that of the w-th worker of this rank."""
        raise NotImplementedError

    def end_worker(self, w: int) -> None:
        """Store the state of the w-th worker of this rank after its batch."""

    def end_step(self) -> None:
        """Finish a step after its last worker. Collective."""

    def stacked(self, workers: range) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return parameters and buffers by name for one batched pass over W workers.

        Args:
            workers: Any workers if weights are shared, otherwise some workers of this rank.

        Returns:
            Tensors of shape (W, ...). Shared parameters do not have the dimension W.
        """
        raise NotImplementedError

    def set_buffers(self, buffers_W: dict[str, Tensor]) -> None:
        """Store the buffers that belong to this rank's first worker, after the last pass of a step. Collective."""


class SharedModel(EmulatedWorkers):
    """Workers with one set of weights.

    Buffers, such as the running statistics of BatchNorm, are those of worker 0, as with DDP's
    broadcast_buffers. Every worker starts a step with the buffers that worker 0 had at the end of the
    previous step. Changes that other workers make are discarded.
    """

    separate_weights = False

    def __init__(self, model: nn.Module, workers: Workers):
        self.model, self.workers = model, workers
        self.buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self.is_single = len(workers.local) == 1  # A single worker needs no copies of the buffers.
        self.start = [] if self.is_single else [buffer.clone() for buffer in self.buffers]
        self.of_worker_0 = [] if self.is_single else [buffer.clone() for buffer in self.buffers]

    def begin_step(self) -> None:
        """Save the buffers that every worker starts with."""
        if not self.is_single:
            _copy(self.start, self.buffers)

    def begin_worker(self, w: int) -> None:
        """Restore the buffers that `begin_step` saved."""
        if w > 0:
            _copy(self.buffers, self.start)

    def end_worker(self, w: int) -> None:
        """Save the buffers if this is worker 0."""
        if self.workers.local[w] == 0 and not self.is_single:
            _copy(self.of_worker_0, self.buffers)

    def end_step(self) -> None:
        """Copy the buffers of worker 0 to the models of all ranks. Collective."""
        if self.workers.rank == 0 and not self.is_single:
            _copy(self.buffers, self.of_worker_0)
        if self.workers.ranks > 1:
            _broadcast_from_rank_0(self.buffers)

    def stacked(self, workers: range) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the shared parameters, and the buffers with one copy per worker."""
        W = len(workers)
        parameters = {name: p.detach() for name, p in trainable(self.model).items()}
        return parameters, {name: b.expand(W, *b.shape).clone() for name, b in self.model.named_buffers()}

    def set_buffers(self, buffers_W: dict[str, Tensor]) -> None:
        """Store the buffers of worker 0 on all ranks. Collective."""
        self.begin_step()
        if self.workers.rank == 0:
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers_W[name][0])
        self.end_worker(0)
        self.end_step()


class SeparateModels(EmulatedWorkers):
    """Workers with separate weights and buffers.

    All weights are stored in one tensor x_WxD with one row per worker (`cpdrun.comm.gossip.base`). The model emulates a
    worker by pointing its parameters and buffers to those of the worker, without a copy.

    Attributes:
        parameters: `parameters[w]` are the parameters of the w-th worker of this rank, views of its row.
    """

    separate_weights = True

    def __init__(self, model: nn.Module, workers: Workers):
        self.model, self.workers = model, workers
        model_parameters = trainable(model)
        self.slots = [*model_parameters.values(), *(buffer for buffer in model.buffers() if buffer.numel())]
        self.names = list(model_parameters)
        self.buffer_names = [name for name, buffer in model.named_buffers() if buffer.numel()]
        W, weights = len(workers.local), [p.detach() for p in model_parameters.values()]
        self.rows = WeightLayout([p.shape for p in weights])
        self.x_WxD = self.rows.zeros(W, weights[0].device)
        for row in self.x_WxD:
            torch._foreach_copy_(self.rows.parameters(row), weights)
        self.buffers_BxW = [b.expand(W, *b.shape).clone() for b in self.slots[len(weights) :]]
        self.parameters = [[nn.Parameter(view) for view in self.rows.parameters(row)] for row in self.x_WxD]

    def begin_worker(self, w: int) -> None:
        """Point the model to the weights and buffers of the w-th worker of this rank."""
        self._point_to([*self.rows.parameters(self.x_WxD[w]), *(stack[w] for stack in self.buffers_BxW)])

    def stacked(self, workers: range) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return views of the parameters and buffers of some of this rank's workers."""
        first = self.workers.local.start
        w = slice(workers.start - first, workers.stop - first)
        parameters = dict(zip(self.names, self.rows.stacked(self.x_WxD[w]), strict=True))
        return parameters, {name: b[w] for name, b in zip(self.buffer_names, self.buffers_BxW, strict=True)}

    def use_weights(self, weights_P: Sequence[Tensor]) -> None:
        """Point the model to these weights and to a copy of worker 0's buffers. Collective."""
        buffers = [stack[0].clone() for stack in self.buffers_BxW]
        if self.workers.ranks > 1:
            _broadcast_from_rank_0(buffers)
        self._point_to([*(weights.detach() for weights in weights_P), *buffers])

    def use_mean_weights(self) -> float:
        """Point the model to the mean weights of all N workers. Return sqrt(mean_i |x_i - x_mean|^2). Collective."""
        mean_D = self._mean(self.x_WxD).float()
        mean_buffers = [
            self._mean(stack).to(stack.dtype) for stack in self.buffers_BxW
        ]  # The means of integers are truncated.
        self._point_to([*self.rows.parameters(mean_D), *mean_buffers])
        squares_N = torch.zeros(self.workers.world_size, dtype=torch.float64, device=mean_D.device)
        for worker, x_D in zip(self.workers.local, self.x_WxD, strict=True):
            squares_N[worker] = (x_D - mean_D).double().square().sum()
        return self.workers.sum_of_disjoint(squares_N).mean().sqrt().item()

    def worker_state(self, w: int) -> dict[str, list[Tensor]]:
        """Return a copy of the weights and buffers of the w-th worker of this rank."""
        return {
            "weights": [p.detach().clone() for p in self.parameters[w]],
            "buffers": [stack[w].clone() for stack in self.buffers_BxW],
        }

    def load_worker_state(self, w: int, state: dict[str, list[Tensor]]) -> None:
        """Load the state that `worker_state` returned."""
        with torch.no_grad():
            _copy(self.parameters[w], state["weights"])
            _copy([stack[w] for stack in self.buffers_BxW], state["buffers"])

    def _point_to(self, values: list[Tensor]) -> None:
        for slot, value in zip(self.slots, values, strict=True):
            slot.data = value

    def _mean(self, stack: Tensor) -> Tensor:
        """Return the mean over the N workers, summed in float64 in the order of the workers. Collective."""
        total = torch.zeros(stack.shape[1:], dtype=torch.float64, device=stack.device)
        first = self.workers.local.start
        for worker in range(self.workers.world_size):
            owner = self.workers.owner(worker)
            row = stack[worker - first].clone() if owner == self.workers.rank else torch.empty_like(stack[0])
            if self.workers.ranks > 1:
                dist.broadcast(row, src=owner)
            total += row
        return total.div_(self.workers.world_size)


def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    if to:
        torch._foreach_copy_(list(to), list(source))


def _broadcast_from_rank_0(tensors: list[Tensor]) -> None:
    """Broadcast the tensors from rank 0, one message per dtype."""
    for dtype in sorted({t.dtype for t in tensors}, key=str):
        same = [t for t in tensors if t.dtype == dtype]
        flat = torch.cat([t.reshape(-1) for t in same])
        dist.broadcast(flat, src=0)
        for tensor, values in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(values.view_as(tensor))
