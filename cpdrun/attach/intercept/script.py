"""The state of a script in one of its processes: its optimizers, models and ranks, and the exchanged gradients.

A script does not register its models. They are found from the parameters that its optimizers update. A model is the
outermost module that contains a parameter, without wrappers (DistributedDataParallel, torch.compile). The name of a
parameter is its name in this model, without the prefixes of wrappers.
"""

import gc
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist
from custom_fp.operators.dtensors import is_sharded
from torch import nn
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
        world_size: The number of workers of the run. The workers are divided equally among the script's processes.

    Attributes:
        optimizers: The script's optimizers and their numbers, in the order of creation, which is equal on all ranks.
        claimed: The parameters whose gradients DDP or FSDP exchanges.
        wrappers: The number of models that DDP and FSDP wrap.
        exchanged: The ways in which gradients have been exchanged.
        reached: The number of values of each exchanged parameter, by name.
        unreached: The names of parameters whose gradients are not exchanged.
        notes: The lines that were printed. Each line is printed only once.
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
        self._loaded: dict[str, Any] = {}  # states from a checkpoint whose owners are not yet registered

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
        """The number of workers of each process. Raises UserError if the workers cannot be divided equally."""
        return self.workers.share

    @property
    def local_workers(self) -> range:
        """The numbers of the workers that this process emulates."""
        return self.workers.local

    @property
    def workers(self) -> Workers:
        """The assignment of workers to processes. Raises UserError if the workers cannot be divided equally."""
        try:
            return Workers(self.world_size, self.rank, self.ranks)
        except ValueError as error:
            raise UserError(str(error)) from None

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the optimizers update, without FSDP's shards."""
        found = {id(p): p for optimizer in self.optimizers for p in parameters_of(optimizer)}
        return [p for p in found.values() if not is_sharded(p)]

    def number_of(self, optimizer: Optimizer) -> int:
        """Return the optimizer's number. A new optimizer is added."""
        if optimizer not in self.optimizers:
            self.optimizers[optimizer] = self._optimizer_count
            self._optimizer_count += 1
        return self.optimizers[optimizer]

    def models_with(self, parameters: Sequence[nn.Parameter]) -> list[nn.Module]:
        """Return the known models, after searching for models that contain parameters of no known model."""
        known = [model for ref in self._models if (model := ref()) is not None]
        contained = {id(p) for model in known for p in model.parameters()}
        for model in _find_models([p for p in parameters if id(p) not in contained]):
            self.add_model(model)
            known.append(model)
        return known

    def add_model(self, model: nn.Module) -> None:
        """Add a model of the script to the known models."""
        if not any(ref() is model for ref in self._models):
            self._models.append(weakref.ref(model))

    def names_of(self, parameters: Sequence[nn.Parameter]) -> list[str]:
        """Return a unique name for each parameter.

        If an earlier model has a parameter of the same name, the number of the model is prepended. The name of a
        parameter that belongs to no model contains the parameter's number.
        """
        names: dict[int, str] = {}
        for m, model in enumerate(self.models_with(parameters)):
            taken = set(names.values())
            for name, parameter in model.named_parameters():
                name = unwrapped_name(name)
                names.setdefault(id(parameter), f"{m}.{name}" if name in taken else name)
        return [names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)]

    def register_state(self, name: str, owner: Any) -> None:
        """Register an object that has a state_dict, under a name. Load its state if a checkpoint contains this name."""
        self._states[name] = owner
        if name in self._loaded:
            owner.load_state_dict(self._loaded.pop(name))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all registered objects. Collective."""
        return self._loaded | {name: self._states[name].state_dict() for name in sorted(self._states)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load states that `state_dict` returned, now or when the object that owns a state is registered."""
        self._loaded = dict(state)
        for name in sorted(self._states.keys() & state.keys()):
            self._states[name].load_state_dict(self._loaded.pop(name))

    def record_exchange(self, how: str, names: Iterable[str], numels: Iterable[int]) -> None:
        """Record that the gradients of these parameters were exchanged.

        `how` describes the way of exchanging them. It is printed when it occurs for the first time.
        """
        if how not in self.exchanged:
            self.exchanged[how] = None
            self.print(f"gradients (world_size={self.world_size}): {how}")
        self.reached.update(zip(names, numels, strict=True))

    def record_unreached(self, parameters: Sequence[nn.Parameter]) -> None:
        """Record parameters whose gradients were used without having been exchanged."""
        new = [p for p in parameters if p not in self._unreached]
        for p in new:
            self._unreached[p] = True
        for name in self.names_of(new) if new else ():
            self.note(f"the gradient of {name} is not exchanged between workers")
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
    """Return the parameters that receive gradients in this process, without FSDP's shards."""
    return [p for p in parameters if p.requires_grad and p.is_leaf and not is_sharded(p)]


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

    A parameter may be in several models, for example in a network and in a loss module that contains the network. Then
    only the model that contains most of the given parameters is returned.
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
