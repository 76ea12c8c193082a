"""A small model with its loss and its gradients, as a script in this process would have it."""

import itertools

import torch
import torch.nn.functional as F
from bits import same_bits
from intercepted_script import batch
from torch import Tensor, nn

from cpdrun.comm import emulate_all_reduce

E3M0 = ("format=e3m0", "aps=true")


def linear(sizes: tuple[int, ...] = (64, 8, 10)) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(n, m) for n, m in itertools.pairwise(sizes)]
    return nn.Sequential(nn.Flatten(), *layers)


def loss_of(model: nn.Module, worker: int, step: int) -> Tensor:
    x, y = batch(worker, step)
    return F.cross_entropy(model(x), y)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), retain_graph=True))


def assert_rounded(model: nn.Module, *own: list[Tensor]) -> None:
    """Check that `.grad` has the bits of the emulated sum, in e3m0 with APS, of each worker's gradients."""
    for p, *of_workers in zip(model.parameters(), *own, strict=True):
        assert same_bits(p.grad, emulate_all_reduce(of_workers, "e3m0", aps=True))


def step_of(model: nn.Module, *optimizers: torch.optim.Optimizer, passes: int = 1) -> None:
    for w in range(passes):
        loss_of(model, w, 0).backward()
    for optimizer in optimizers:
        optimizer.step()
