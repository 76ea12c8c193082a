"""The model as the workers of this rank have it: whose weights and buffers it holds while it plays one of them.

Legend: N workers, W of them on this rank, D values in a row, B buffers.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cpdrun.comm.gossip.base import WeightLayout
from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable


class Played:
    """One model that plays W workers. `own`: whether each has weights of its own, which a step may move apart."""

    model: nn.Module
    workers: Workers
    own: bool

    def begin_step(self) -> None:
        """Before the first worker of a step."""

    def begin_worker(self, w: int) -> None:
        """From here on the model is my w-th worker."""
        raise NotImplementedError

    def end_worker(self, w: int) -> None:
        """My w-th worker has seen its batch."""

    def end_step(self) -> None:
        """After the last worker of a step. Collective."""

    def stacked(self, workers: range) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and buffers by name for one pass over W workers: (W, ...), parameters without the W unless `own`.

        workers: any where weights are shared, else some of mine.
        """
        raise NotImplementedError

    def took(self, buffers_W: dict[str, Tensor]) -> None:
        """What the pass over my first worker made of the buffers, after the step's last pass. Collective."""


class SharedModel(Played):
    """One set of weights. BatchNorm's running statistics (any buffer) follow worker 0, as DDP's broadcast_buffers has
    it: every worker starts a step from worker 0's buffers of the step before; what the others change is dropped."""

    own = False

    def __init__(self, model: nn.Module, workers: Workers):
        self.model, self.workers = model, workers
        self.buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self.alone = len(workers.mine) == 1  # the buffers are one worker's all along
        self.start = [] if self.alone else [buffer.clone() for buffer in self.buffers]
        self.of_worker_0 = [] if self.alone else [buffer.clone() for buffer in self.buffers]

    def begin_step(self) -> None:
        if not self.alone:
            _copy(self.start, self.buffers)

    def begin_worker(self, w: int) -> None:
        if w > 0:
            _copy(self.buffers, self.start)

    def end_worker(self, w: int) -> None:
        if self.workers.mine[w] == 0 and not self.alone:
            _copy(self.of_worker_0, self.buffers)

    def end_step(self) -> None:
        if self.workers.rank == 0 and not self.alone:
            _copy(self.buffers, self.of_worker_0)
        if self.workers.ranks > 1:
            _broadcast_from_rank_0(self.buffers)

    def stacked(self, workers: range) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        W = len(workers)
        parameters = {name: p.detach() for name, p in trainable(self.model).items()}
        return parameters, {name: b.expand(W, *b.shape).clone() for name, b in self.model.named_buffers()}

    def took(self, buffers_W: dict[str, Tensor]) -> None:
        self.begin_step()
        if self.workers.rank == 0:
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers_W[name][0])
        self.end_worker(0)
        self.end_step()


class OwnModels(Played):
    """Weights and buffers of each worker's own. All weights stand in one tensor x_WxD, a row a worker
    (`cpdrun.comm.gossip.base`); the model plays a worker by taking that worker's rows and buffers as its own, without a
    copy. `parameters[w]` are those of my w-th worker, views of its row."""

    own = True

    def __init__(self, model: nn.Module, workers: Workers):
        self.model, self.workers = model, workers
        of_model = trainable(model)
        self.slots = [*of_model.values(), *(buffer for buffer in model.buffers() if buffer.numel())]
        self.names = list(of_model)
        self.buffer_names = [name for name, buffer in model.named_buffers() if buffer.numel()]
        W, weights = len(workers.mine), [p.detach() for p in of_model.values()]
        self.rows = WeightLayout([p.shape for p in weights])
        self.x_WxD = self.rows.zeros(W, weights[0].device)
        for row in self.x_WxD:
            torch._foreach_copy_(self.rows.parameters(row), weights)
        self.buffers_BxW = [b.expand(W, *b.shape).clone() for b in self.slots[len(weights) :]]
        self.parameters = [[nn.Parameter(view) for view in self.rows.parameters(row)] for row in self.x_WxD]

    def begin_worker(self, w: int) -> None:
        self._become([*self.rows.parameters(self.x_WxD[w]), *(stack[w] for stack in self.buffers_BxW)])

    def stacked(self, workers: range) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        first = self.workers.mine.start
        w = slice(workers.start - first, workers.stop - first)
        parameters = dict(zip(self.names, self.rows.stacked(self.x_WxD[w]), strict=True))
        return parameters, {name: b[w] for name, b in zip(self.buffer_names, self.buffers_BxW, strict=True)}

    def play(self, weights_P: Sequence[Tensor]) -> None:
        """The model is these weights, not a copy of them, with worker 0's buffers from here on. Collective."""
        buffers = [stack[0].clone() for stack in self.buffers_BxW]
        if self.workers.ranks > 1:
            _broadcast_from_rank_0(buffers)
        self._become([*(weights.detach() for weights in weights_P), *buffers])

    def play_mean(self) -> float:
        """The model is the mean of all N from here on; sqrt(mean_i |x_i - x_mean|^2). Collective."""
        mean_D = self._mean(self.x_WxD).float()
        self._become([*self.rows.parameters(mean_D), *map(self._mean_buffer, self.buffers_BxW)])
        squares_N = torch.zeros(self.workers.world_size, dtype=torch.float64, device=mean_D.device)
        for worker, x_D in zip(self.workers.mine, self.x_WxD, strict=True):
            squares_N[worker] = (x_D - mean_D).double().square().sum()
        return self.workers.sum_of_disjoint(squares_N).mean().sqrt().item()

    def of_worker(self, w: int) -> dict[str, list[Tensor]]:
        return {
            "weights": [p.detach().clone() for p in self.parameters[w]],
            "buffers": [stack[w].clone() for stack in self.buffers_BxW],
        }

    def take(self, w: int, kept: dict[str, list[Tensor]]) -> None:
        """What `of_worker` gave."""
        with torch.no_grad():
            _copy(self.parameters[w], kept["weights"])
            _copy([stack[w] for stack in self.buffers_BxW], kept["buffers"])

    def _become(self, values: list[Tensor]) -> None:
        for slot, value in zip(self.slots, values, strict=True):
            slot.data = value

    def _mean_buffer(self, stack: Tensor) -> Tensor:
        """The mean of a buffer over all workers, of whole numbers cut down to one. Collective."""
        return self._mean(stack).to(stack.dtype)

    def _mean(self, stack: Tensor) -> Tensor:
        """Over the N workers, summed in float64 in their order; their rows go round one by one. Collective."""
        total = torch.zeros(stack.shape[1:], dtype=torch.float64, device=stack.device)
        first = self.workers.mine.start
        for worker in range(self.workers.world_size):
            owner = self.workers.owner(worker)
            row = stack[worker - first].clone() if owner == self.workers.rank else torch.empty_like(stack[0])
            if self.workers.ranks > 1:
                dist.broadcast(row, src=owner)
            total += row
        return total.div_(self.workers.world_size)


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)


def _broadcast_from_rank_0(tensors: list[Tensor]) -> None:
    for dtype in sorted({t.dtype for t in tensors}, key=str):
        same = [t for t in tensors if t.dtype == dtype]
        flat = torch.cat([t.reshape(-1) for t in same])
        dist.broadcast(flat, src=0)
        for tensor, values in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(values.view_as(tensor))
