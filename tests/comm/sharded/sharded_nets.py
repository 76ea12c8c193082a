"""A small model of odd sizes, its batches, and functions that shard it, train it and collect its weights."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    """Of odd sizes, so that shards are of several lengths and some empty; a parameter whose weights shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3)
        self.layers = nn.ModuleList([nn.Linear(5 * 6 * 6, 23), nn.Linear(23, 23)])
        self.norm = nn.LayerNorm(23)
        self.head = nn.Linear(23, 10)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu().flatten(1)
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(self.norm(x)) * self.scale


def a_net() -> Net:
    torch.manual_seed(0)
    return Net()


def sharded(net: Net, **how: Any) -> Net:
    for layer in net.layers:
        fully_shard(layer, **how)
    return fully_shard(net, **how)


def batch(worker: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + worker)
    return torch.randn(6, 1, 8, 8, generator=generator), torch.randint(0, 10, (6,), generator=generator)


def train(model: nn.Module, steps: Sequence[int], optimizer: torch.optim.Optimizer, worker: int) -> None:
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(worker, step)
        F.cross_entropy(model(x).float(), y).backward()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def whole(model: nn.Module, of: Callable[[nn.Parameter], Any] = lambda p: p) -> list[Tensor]:
    """Return every parameter with all its shards. All ranks must call this function."""
    return [of(p).full_tensor().detach().clone() for p in model.parameters()]


def own_gradients(net: nn.Module, worker: int, step: int) -> list[Tensor]:
    """Return the gradients that one worker computes alone."""
    net = copy.deepcopy(net)
    net.zero_grad()
    x, y = batch(worker, step)
    F.cross_entropy(net(x).float(), y).backward()
    return [p.grad for p in net.parameters()]


def rank() -> int:
    return dist.get_rank()
