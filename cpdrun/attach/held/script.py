"""What is known of a script in one of its processes: its optimizers, models and ranks, and what has been exchanged."""

import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from cpdrun.attach.held.models import models_of, names_of
from cpdrun.comm.workers import Workers
from cpdrun.errors import UserError

DDP, FSDP = "DistributedDataParallel", "fully_shard"


class Script:
    """world_size: workers of the run, which the script's processes share equally."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        # in the order in which they were made, which is that of every rank
        self.optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._made = 0
        self._models: list[weakref.ref[nn.Module]] = []
        self.claimed = WeakIdKeyDictionary()  # parameters with an exchange of their own, DDP or FSDP
        self.wrappers: dict[str, int] = {}  # how many models each of those wraps
        self.exchanged: dict[str, None] = {}  # how gradients have been exchanged
        self.reached: dict[str, int] = {}  # values of the parameters that were, by their names
        self.unreached: dict[str, None] = {}
        self._unreached = WeakIdKeyDictionary()
        self.notes: dict[str, None] = {}
        self.going: dict[
            str, Any
        ] = {}  # sums, by names that they have again when the script is started again
        self._loaded: dict[str, Any] = {}  # of a checkpoint, for those that are not there yet

    @property
    def ranks(self) -> int:
        if dist.is_available() and dist.is_initialized():
            return dist.get_world_size()
        return int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def rank(self) -> int:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank()
        return int(os.environ.get("RANK", "0"))

    @property
    def share(self) -> int:
        """Workers a process. Raises UserError where they cannot be shared equally."""
        return self._workers().share

    @property
    def mine(self) -> range:
        return self._workers().mine

    def _workers(self) -> Workers:
        try:
            return Workers(self.world_size, self.rank, self.ranks)
        except ValueError as error:
            raise UserError(str(error)) from None

    def parameters(self) -> list[nn.Parameter]:
        """Those that its optimizers move, in their order; no shards of FSDP's."""
        found = {id(p): p for optimizer in self.optimizers for p in of_optimizer(optimizer)}
        return [p for p in found.values() if not isinstance(p, DTensor)]

    def number(self, optimizer: Optimizer) -> int:
        """Which of the script's optimizers it is; a new one is added."""
        if optimizer not in self.optimizers:
            self.optimizers[optimizer] = self._made
            self._made += 1
        return self.optimizers[optimizer]

    def models_with(self, parameters: Sequence[nn.Parameter]) -> list[nn.Module]:
        """Those given by name, and others that hold any of these; looked for where a parameter is new."""
        known = [model for ref in self._models if (model := ref()) is not None]
        held = {id(p) for model in known for p in model.parameters()}
        for model in models_of([p for p in parameters if id(p) not in held]):
            self.know(model)
            known.append(model)
        return known

    def know(self, model: nn.Module) -> None:
        """As one of the script's models."""
        if not any(ref() is model for ref in self._models):
            self._models.append(weakref.ref(model))

    def named(self, parameters: Sequence[nn.Parameter]) -> list[str]:
        """Their names in the script's models."""
        return names_of(parameters, self.models_with(parameters))

    def go_on(self, name: str, going: Any) -> None:
        """Of what has a state_dict; it is given what a checkpoint has of it."""
        self.going[name] = going
        if name in self._loaded:
            going.load_state_dict(self._loaded.pop(name))

    def state_dict(self) -> dict[str, Any]:
        """Of each of the sums. Collective."""
        return self._loaded | {name: self.going[name].state_dict() for name in sorted(self.going)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = dict(state)
        for name in sorted(self.going.keys() & state.keys()):
            self.going[name].load_state_dict(self._loaded.pop(name))

    def did_exchange(self, how: str, names: Iterable[str], numels: Iterable[int]) -> None:
        if how not in self.exchanged:
            self.exchanged[how] = None
            self.say(f"gradients (world_size={self.world_size}): {how}")
        self.reached.update(zip(names, numels, strict=True))

    def did_not_reach(self, parameters: Sequence[nn.Parameter]) -> None:
        """Parameters that took a step by gradients which no exchange has seen."""
        new = [p for p in parameters if p not in self._unreached]
        for p in new:
            self._unreached[p] = True
        for name in self.named(new) if new else ():
            self.note(f"the gradient of {name} is left alone: nothing exchanges it")
            self.unreached[name] = None

    def note(self, line: str) -> None:
        """Said once, and recorded."""
        if line not in self.notes:
            self.notes[line] = None
            self.say(line)

    def say(self, line: str) -> None:
        if self.rank == 0:
            print(f"cpdrun: {line}", file=sys.stderr, flush=True)


def of_optimizer(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def trainable(parameters: Iterable[Any]) -> list[nn.Parameter]:
    """Those that gradients can be taken of here: leaves, and no shards."""
    return [p for p in parameters if p.requires_grad and p.is_leaf and not isinstance(p, DTensor)]
