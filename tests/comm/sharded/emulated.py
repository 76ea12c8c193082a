"""Sharded training by its definition, in one process: whole layers, without code of cpdrun.comm.sync."""

import math
from collections.abc import Sequence
from typing import Any

import custom_fp
import torch
import torch.nn.functional as F
from custom_fp.formats.names import parse
from sharded_nets import a_net, batch
from torch import Tensor, nn

from cpdrun.comm import emulate_all_reduce


def scaled(x: Tensor, fmt: str, scale: bool) -> Tensor:
    """Return Q(x 2^s) 2^-s, computed in float64, where only Q rounds."""
    parsed = parse(fmt)
    largest = x.abs().max().item()
    s = 0
    if scale and (parsed.exponent_bits or 0) < 8 and largest > 0:
        mantissa, exponent = math.frexp(largest)
        s = parsed.emax - (exponent - (mantissa == 0.5))
    return (custom_fp.quantize(x.double() * 2.0**s, fmt).double() * 2.0**-s).float()


class Emulated:
    """N workers that share one model. `masters` are the float32 weights of all owners together."""

    def __init__(
        self,
        workers: int,
        fmt: str,
        gather: str = "fp32",
        differences: bool = False,
        aps: bool = False,
        **knobs: Any,
    ) -> None:
        self.workers, self.fmt, self.gather, self.differences = workers, fmt, gather, differences
        self.aps, self.knobs = aps, knobs
        self.model, masters = a_net(), a_net()
        self.masters = list(masters.parameters())
        self.optimizer = torch.optim.SGD(self.masters, lr=0.1, momentum=0.9)
        self.started = False
        self.dtype = torch.float32
        self.batches = 1

    def gather_(self) -> None:
        with torch.no_grad():
            for w, m in zip(self.model.parameters(), self.masters, strict=True):
                if self.differences and self.started:
                    w += scaled(m - w, self.gather, True)
                elif not self.differences:
                    w.copy_(scaled(m, self.gather, self.aps))
        self.started = True

    def step(self, step: int) -> None:
        self.gather_()
        of_workers = [self.gradients(worker, step) for worker in range(self.workers)]
        for m, gradients in zip(self.masters, zip(*of_workers, strict=True), strict=True):
            shares = [g.float() / self.workers for g in gradients]
            m.grad = emulate_all_reduce(shares, self.fmt, aps=self.aps, **self.knobs)
        self.optimizer.step()

    def gradients(self, worker: int, step: int) -> Sequence[Tensor]:
        net: nn.Module = a_net()
        net.load_state_dict(self.model.state_dict())
        net.to(self.dtype)
        for i in range(self.batches):
            x, y = batch(worker, self.batches * step + i)
            F.cross_entropy(net(x.to(self.dtype)).float(), y).backward()
        return [p.grad for p in net.parameters()]

    def run(self, steps: int) -> list[Tensor]:
        for step in range(steps):
            self.step(step)
        return [m.detach() for m in self.masters]
