"""Rounding of the gradients of a process that is the run's only worker, before the optimizer uses them.

Gradients are rounded at the first of these calls after a backward pass:

    torch.nn.utils.clip_grad_norm_ and similar     Before the call. The norm is then that of the rounded gradients, as
                                                   in the built-in loop.
    GradScaler.unscale_                            Before the call, so that scaled gradients are rounded, as with DDP.
    optimizer.step()                               Before the step. With a closure, after each call of the closure.

If a script clips or changes gradients with its own code, this happens before they are rounded, and a note says so.
Gradients that several backward passes accumulate belong to one worker and are rounded once. Only the gradients of
parameters that an optimizer updates are rounded.
"""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from cpdrun.attach.intercept.exchange import ExchangeSettings, GradientExchange, GradientMean, dense
from cpdrun.attach.intercept.script import Script, parameters_of, trainable
from cpdrun.errors import UserError

HOW = "rounded before the optimizer's step"


class SingleWorker(GradientExchange):
    """Rounds gradients that neither DDP nor FSDP exchanges.

    The first step raises UserError if there are several processes that exchange no gradients.
    """

    def __init__(self, settings: ExchangeSettings, script: Script) -> None:
        super().__init__(settings, script)
        self.means: dict[
            int, GradientMean
        ] = {}  # the mean of each optimizer's gradients, by the optimizer's number
        self._owner = WeakIdKeyDictionary()  # the number of the optimizer that updates each parameter
        self._new: dict[
            int, tuple[nn.Parameter, int]
        ] = {}  # gradients that are not exchanged, and their versions

    def add(self, optimizer: Optimizer) -> None:
        """Round the gradients of an optimizer's parameters from now on."""
        number = self.script.number_of(optimizer)
        for p in trainable(parameters_of(optimizer)):
            if p not in self._owner:
                self._owner[p] = number
                p.register_post_accumulate_grad_hook(self._mark)

    def _mark(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            self._new[id(parameter)] = parameter, parameter.grad._version

    def before_step(self, optimizer: Optimizer) -> None:
        """Round the gradients of an optimizer, including those of parameters that were frozen when it was created."""
        parameters = parameters_of(optimizer)
        late = [p for p in trainable(parameters) if p.grad is not None and p not in self._owner]
        if late:
            self.add(optimizer)
            for p in late:
                self._mark(p)
        self.complete(parameters)

    def complete(self, parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Round those gradients of these parameters that have not been exchanged."""
        parameters = self.script.parameters() if parameters is None else parameters
        found = [self._new.pop(id(p)) for p in parameters if id(p) in self._new]
        found = [(p, v) for p, v in found if p.grad is not None and p not in self.script.claimed]
        if not found:
            return
        if self._is_left_alone():
            self.script.record_unreached([p for p, _ in found])
            return
        by_owner: dict[int, list[tuple[nn.Parameter, int]]] = {}
        for p, version in found:
            by_owner.setdefault(self._owner[p], []).append((p, version))
        for owner, of_owner in by_owner.items():
            self._round_(owner, of_owner)

    def discard(self, parameters: Iterable[nn.Parameter]) -> None:
        """Print a note if the script zeroes gradients that have not been exchanged.

        The script may have used these gradients itself, for example in the first step of SAM. DDP would have exchanged
        them.
        """
        found = [p for p in parameters if self._new.pop(id(p), None) is not None]
        if any(p.grad is not None and p not in self.script.claimed for p in found) and self.script.ranks == 1:
            self.script.note(
                "the script zeroes gradients that no optimizer step has used. If the script used them itself, they "
                "were not rounded"
            )

    def _is_left_alone(self) -> bool:
        """Return whether gradients that neither DDP nor FSDP exchanges are not rounded, because DDP or FSDP is used."""
        if self.script.ranks == 1:
            return False
        if not self.script.wrappers:
            raise UserError(
                f"format={self.settings.format}: the script runs in {self.script.ranks} processes, but does not "
                "exchange gradients with DistributedDataParallel or fully_shard. Wrap the model, set nproc=1, or put "
                "`with run.worker(w):` around each worker's forward and backward pass"
            )
        return True

    @torch.no_grad()
    def _round_(self, owner: int, found: list[tuple[nn.Parameter, int]]) -> None:
        parameters = [p for p, _ in found]
        if owner not in self.means:
            self.means[owner] = GradientMean(self.settings, self.script, f"optimizer {owner}", 1, None)
        names = self.means[owner].names_of(parameters)
        if any(_grad(p)._version != version for p, version in found):
            self.script.note(
                "the script changes gradients between the backward pass and the step. They are rounded after that"
            )
        flat = [dense(_grad(p), name) for p, name in zip(parameters, names, strict=True)]
        sums = self.means[owner].exchange_(HOW, parameters, [g[None] for g in flat])
        for p, sum_n in zip(parameters, sums, strict=True):
            if sum_n.data_ptr() != _grad(p).data_ptr():
                _grad(p).copy_(sum_n.view(p.shape))


def _grad(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
