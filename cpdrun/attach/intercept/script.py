"""Track a script in one of its processes: its optimizers, models and ranks, and which gradients were exchanged.

A script registers nothing, so its models are found by the parameters that its optimizers update. A model is the
outermost module that contains a parameter, without wrappers (DistributedDataParallel, torch.compile). Parameters have
the names that this model gives them, without the prefixes of wrappers.
"""

import gc
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from cpdrun.comm.script.ddp_hook import unwrapped_name
from cpdrun.comm.workers import Workers
from cpdrun.errors import UserError

DDP, FSDP = "DistributedDataParallel", "fully_shard"


class Script:
    """The optimizers, models and ranks of a script, and what was recorded about its gradients.

    Args:
        world_size: The number of workers of the run. The script's processes share them equally.

    Attributes:
        optimizers: The script's optimizers and their numbers, in the order of creation, which all ranks share.
        claimed: The parameters whose gradients DDP or FSDP exchanges.
        wrappers: The number of models that DDP and FSDP wrap.
        exchanged: The ways in which gradients have been exchanged.
        reached: The number of values of each exchanged parameter, by name.
        unreached: The names of parameters whose gradients nothing exchanges.
        notes: Lines that were printed, each once.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._optimizer_count = 0
        self._models: list[weakref.ref[nn.Module]] = []
        self.claimed = WeakIdKeyDictionary()
        self.wrappers: dict[str, int] = {}
        self.exchanged: dict[str, None] = {}
        self.reached: dict[str, int] = {}
        self.unreached: dict[str, None] = {}
        self._unreached = WeakIdKeyDictionary()
        self.notes: dict[str, None] = {}
        self._states: dict[str, Any] = {}
        self._loaded: dict[str, Any] = {}  # from a checkpoint, for states that are not registered yet

    @property
    def ranks(self) -> int:
        """The number of the script's processes."""
        if dist.is_available() and dist.is_initialized():
            return dist.get_world_size()
        return int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def rank(self) -> int:
        """The rank of this process."""
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank()
        return int(os.environ.get("RANK", "0"))

    @property
    def workers_per_rank(self) -> int:
        """The number of workers of each process. Raises UserError if they cannot be shared equally."""
        return self.workers.share

    @property
    def local_workers(self) -> range:
        """The workers of this process."""
        return self.workers.local

    @property
    def workers(self) -> Workers:
        """How workers are distributed over processes. Raises UserError if they cannot be shared equally."""
        try:
            return Workers(self.world_size, self.rank, self.ranks)
        except ValueError as error:
            raise UserError(str(error)) from None

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the optimizers update, without FSDP's shards."""
        found = {id(p): p for optimizer in self.optimizers for p in parameters_of(optimizer)}
        return [p for p in found.values() if not isinstance(p, DTensor)]

    def number_of(self, optimizer: Optimizer) -> int:
        """Return the optimizer's number. A new optimizer is added."""
        if optimizer not in self.optimizers:
            self.optimizers[optimizer] = self._optimizer_count
            self._optimizer_count += 1
        return self.optimizers[optimizer]

    def models_with(self, parameters: Sequence[nn.Parameter]) -> list[nn.Module]:
        """Return the known models. If a parameter is in none of them, first look for the model that contains it."""
        known = [model for ref in self._models if (model := ref()) is not None]
        contained = {id(p) for model in known for p in model.parameters()}
        for model in _find_models([p for p in parameters if id(p) not in contained]):
            self.add_model(model)
            known.append(model)
        return known

    def add_model(self, model: nn.Module) -> None:
        """Remember a model of the script."""
        if not any(ref() is model for ref in self._models):
            self._models.append(weakref.ref(model))

    def names_of(self, parameters: Sequence[nn.Parameter]) -> list[str]:
        """Return a unique name for each parameter.

        A name that an earlier model has, too, begins with the number of its model. A parameter that is in no model is
        named by its number.
        """
        names: dict[int, str] = {}
        for m, model in enumerate(self.models_with(parameters)):
            taken = set(names.values())
            for name, parameter in model.named_parameters():
                name = unwrapped_name(name)
                names.setdefault(id(parameter), f"{m}.{name}" if name in taken else name)
        return [names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)]

    def register_state(self, name: str, owner: Any) -> None:
        """Save what has a state_dict under a name, and load what a checkpoint has under this name."""
        self._states[name] = owner
        if name in self._loaded:
            owner.load_state_dict(self._loaded.pop(name))

    def state_dict(self) -> dict[str, Any]:
        """Return the registered states. All ranks must call this together."""
        return self._loaded | {name: self._states[name].state_dict() for name in sorted(self._states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned, now or when the owner of a state is registered."""
        self._loaded = dict(state)
        for name in sorted(self._states.keys() & state.keys()):
            self._states[name].load_state_dict(self._loaded.pop(name))

    def record_exchange(self, how: str, names: Iterable[str], numels: Iterable[int]) -> None:
        """Record that the gradients of these parameters were exchanged, and print each new way of exchanging them."""
        if how not in self.exchanged:
            self.exchanged[how] = None
            self.print(f"gradients (world_size={self.world_size}): {how}")
        self.reached.update(zip(names, numels, strict=True))

    def record_unreached(self, parameters: Sequence[nn.Parameter]) -> None:
        """Record parameters that were updated with gradients that nothing has exchanged."""
        new = [p for p in parameters if p not in self._unreached]
        for p in new:
            self._unreached[p] = True
        for name in self.names_of(new) if new else ():
            self.note(f"the gradient of {name} is left alone: nothing exchanges it")
            self.unreached[name] = None

    def note(self, line: str) -> None:
        """Print and record a line, unless it has been printed before."""
        if line not in self.notes:
            self.notes[line] = None
            self.print(line)

    def print(self, line: str) -> None:
        """Print a line to stderr on rank 0."""
        if self.rank == 0:
            print(f"cpdrun: {line}", file=sys.stderr, flush=True)


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def trainable(parameters: Iterable[Any]) -> list[nn.Parameter]:
    """Return the parameters that backward passes in this process give gradients to. FSDP's shards are left out."""
    return [p for p in parameters if p.requires_grad and p.is_leaf and not isinstance(p, DTensor)]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model without DistributedDataParallel and torch.compile around it."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif original := model._modules.get("_orig_mod"):
            model = original
        else:
            return model


def _find_models(parameters: Iterable[nn.Parameter]) -> list[nn.Module]:
    """Return the models that contain these parameters.

    If several contain a parameter, as a network and a loss around it do, the one with the most of them is returned.
    """
    wanted = {id(p) for p in parameters}
    if not wanted:
        return []
    modules = [x for x in gc.get_objects() if issubclass(type(x), nn.Module) and "_modules" in x.__dict__]
    inner = {id(child) for module in modules for child in module._modules.values()}
    outermost = {id(model): model for m in modules if id(m) not in inner for model in [unwrapped(m)]}
    contained = {key: {id(p) for p in model.parameters()} & wanted for key, model in outermost.items()}
    found = []
    for key in sorted(outermost, key=lambda key: -len(contained[key])):
        if contained[key] & wanted:
            found.append(outermost[key])
            wanted -= contained[key]
    return found
