"""Gradients of a process that is the run's one worker: rounded once they are complete, before the optimizer takes them.

They are complete at the first of these after a backward pass, whichever the script calls:

    torch.nn.utils.clip_grad_norm_ and its kin     so that the clipped norm is that of the rounded gradients, as the
                                                   built-in loop clips
    GradScaler.unscale_                            so that they are rounded as DDP exchanges them: scaled
    optimizer.step()                               and, where it is given a closure, after each call of that

A script that clips or changes gradients by hand does so before the rounding; that is noted. Gradients that pile up
over several backward passes are one worker's, and rounded once. Only parameters of optimizers are looked at.
"""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from cpdrun.attach.held.exchange import Asked, Mean, dense
from cpdrun.attach.held.script import Script, of_optimizer, trainable
from cpdrun.errors import UserError

HOW = "rounded before the optimizer's step"


class OnStep:
    """Raises UserError, at the first step, where several processes share no gradient that could be taken hold of."""

    def __init__(self, asked: Asked, script: Script) -> None:
        self.asked, self.script = asked, script
        self.means: dict[int, Mean] = {}  # by the number of the optimizer
        self._owner = WeakIdKeyDictionary()  # of a parameter that is looked at: its optimizer's number
        self._fresh: dict[int, tuple[nn.Parameter, int]] = {}  # since the latest exchange, and which version

    def take(self, optimizer: Optimizer) -> None:
        """Its parameters' gradients are rounded from here on."""
        number = self.script.number(optimizer)
        for p in trainable(of_optimizer(optimizer)):
            if p not in self._owner:
                self._owner[p] = number
                p.register_post_accumulate_grad_hook(self._mark)

    def _mark(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            self._fresh[id(parameter)] = parameter, parameter.grad._version

    def before_step(self, optimizer: Optimizer) -> None:
        """Of parameters that were frozen when the optimizer got them, too."""
        parameters = of_optimizer(optimizer)
        late = [p for p in trainable(parameters) if p.grad is not None and p not in self._owner]
        if late:
            self.take(optimizer)
            for p in late:
                self._mark(p)
        self.complete(parameters)

    def complete(self, parameters: Iterable[nn.Parameter]) -> None:
        """The gradients of these that no exchange has seen are what the worker sends."""
        found = [self._fresh.pop(id(p)) for p in parameters if id(p) in self._fresh]
        found = [(p, v) for p, v in found if p.grad is not None and p not in self.script.claimed]
        if not found:
            return
        if self._is_left_alone():
            self.script.did_not_reach([p for p, _ in found])
            return
        by_owner: dict[int, list[tuple[nn.Parameter, int]]] = {}
        for p, version in found:
            by_owner.setdefault(self._owner[p], []).append((p, version))
        for owner, of_owner in by_owner.items():
            self._round_(owner, of_owner)

    def drop(self, parameters: Iterable[nn.Parameter]) -> None:
        """The script zeroes the gradients of these. Some that no exchange has seen may have been of use to it, as those
        of SAM's first step are, which DDP would have exchanged."""
        found = [p for p in parameters if self._fresh.pop(id(p), None) is not None]
        if any(p.grad is not None and p not in self.script.claimed for p in found) and self.script.ranks == 1:
            self.script.note(
                "the script zeroes gradients that took no step: whatever it did by them, they were not rounded"
            )

    def _is_left_alone(self) -> bool:
        """In several processes gradients that neither DDP nor FSDP exchanges are each process's own business."""
        if self.script.ranks == 1:
            return False
        if not self.script.wrappers:
            raise UserError(
                f"format={self.asked.format}: the script runs in {self.script.ranks} processes that exchange no "
                "gradients by DistributedDataParallel or fully_shard: wrap the model, take nproc=1, or put "
                "`with run.worker(w):` around each worker's forward and backward"
            )
        return True

    @torch.no_grad()
    def _round_(self, owner: int, found: list[tuple[nn.Parameter, int]]) -> None:
        parameters = [p for p, _ in found]
        if owner not in self.means:
            self.means[owner] = Mean(self.asked, 1, None)
            self.script.go_on(f"optimizer {owner}", self.means[owner])
        mean = self.means[owner]
        unknown = [p for p in parameters if not mean.knows(p)]
        if unknown:
            mean.know(unknown, self.script.named(unknown))
        names = [mean.name(p) for p in parameters]
        if any(p.grad._version != version for p, version in found):
            self.script.note(
                "the script changes gradients between backward and step: they are rounded after that"
            )
        flat = [dense(p.grad, name) for p, name in zip(parameters, names, strict=True)]
        for p, sum_n in zip(parameters, mean.form_(parameters, [g[None] for g in flat]), strict=True):
            if sum_n.data_ptr() != p.grad.data_ptr():
                p.grad.copy_(sum_n.view(p.grad.shape))
        self.script.did_exchange(HOW, names, [p.numel() for p in parameters])
