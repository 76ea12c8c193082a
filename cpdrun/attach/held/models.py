"""Which models a script has: found by the parameters that its optimizers hold, for a script registers nothing.

A model is the outermost module that holds a parameter, less what only wraps it (DistributedDataParallel,
torch.compile). Names are as that model gives them, without the wrappers' prefixes.
"""

import gc
from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm.script.ddp_hook import unwrapped_name


def unwrapped(model: nn.Module) -> nn.Module:
    """The model in a DistributedDataParallel, in what torch.compile gives, or both."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]
        else:
            return model


def models_of(parameters: Iterable[nn.Parameter]) -> list[nn.Module]:
    """The models that hold any of these: of several that hold one (a loss around a network), the largest."""
    wanted = {id(p) for p in parameters}
    if not wanted:
        return []
    modules = [x for x in gc.get_objects() if issubclass(type(x), nn.Module) and "_modules" in x.__dict__]
    inner = {id(child) for module in modules for child in module._modules.values()}
    tops = [unwrapped(module) for module in modules if id(module) not in inner]
    held = {id(top): {id(p) for p in top.parameters()} & wanted for top in tops}
    found = []
    for top in sorted({id(top): top for top in tops}.values(), key=lambda top: -len(held[id(top)])):
        if held[id(top)] & wanted:
            found.append(top)
            wanted -= held[id(top)]
    return found


def names_of(parameters: Sequence[nn.Parameter], models: Sequence[nn.Module]) -> list[str]:
    """Each one's name in the first model that holds it; one that stands in none has a number for a name. No two are
    equal: in all but the first model a name that is taken is preceded by the model's number."""
    names: dict[int, str] = {}
    for m, model in enumerate(models):
        taken = set(names.values())
        for name, parameter in model.named_parameters():
            name = unwrapped_name(name)
            names.setdefault(id(parameter), f"{m}.{name}" if name in taken else name)
    return [names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)]
