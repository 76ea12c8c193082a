"""Attach rounding to the modules of a user's model without changing what the user saves.

`attach_` changes the class of a module to a subclass of its own class, which is created here. The module, its
parameters and its other attributes stay the same objects. All objects of this package to which the module refers are
stored in the attributes that `OURS` names, and in hooks that `add_hooks_` registers.

There are two reasons for using a class, and not a forward hook or a new `forward` on the instance. pickle saves the
attributes of an instance, including hooks. Shallow copies, such as those of DataParallel, would call a function that is
bound to another module. A class, in contrast, determines how its instances are saved and copied:

    pickle, torch.save       The user's class and attributes are saved, so the file can be loaded without this package
                             and with weights_only=True. The loaded model computes in float32 until a recipe is applied.
    copy.deepcopy, copy.copy The copy computes in the same way as the original. A deep copy has its own delayed scales.
    multiprocessing          A model that is passed to another process, as an argument or through a queue, computes in
                             the same way as the original.
    torch.jit, torch.export, ONNX    The exported model is the user's model, in float32. A warning is issued.
    module.__class__         This is the user's class, because pickle compares it with the class that it saves.
                             Assigning to it, as fully_shard and parametrizations do, replaces the user's class and
                             keeps the rounding.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import pickle
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import torch
from torch import nn
from torch._jit_internal import _qualified_name
from torch.nn.utils.parametrize import is_parametrized

OPERATIONS = "attached_operations"
OURS = ("arithmetic", OPERATIONS, "attachment")
HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass
class Attachment:
    """The objects that are attached to a module in addition to its arithmetic.

    Attributes:
        settings: The user's values of the attributes that `override_` changed.
        hooks: The keys of our hooks in the module's dictionaries of hooks.
        histories: The histories of delayed scales that have this module among their owners.
        placement: The rules that round the model, if this module is the whole model.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    hooks: set[int] = field(default_factory=set)
    histories: Any = None
    placement: Any = None


class Attached:
    """The base class of every class that `attach_` creates."""

    plain_class: ClassVar[type]
    rounding_class: ClassVar[type | None]

    @property
    def __class__(self) -> type:
        return type(self).plain_class

    @__class__.setter
    def __class__(self, plain_class: type) -> None:
        _set_class(self, attached_class(plain_class, type(self).rounding_class))

    def __reduce_ex__(self, protocol: Any) -> Any:
        this: Any = self
        return plain(this).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        kind = type(self)
        if not hasattr(kind.plain_class, "__deepcopy__"):
            return copy._reconstruct(self, memo, *self._parts())  # type: ignore[attr-defined]
        copied = kind.plain_class.__deepcopy__(self, memo)
        if "attachment" in copied.__dict__:
            _set_class(copied, kind)
            _join(copied)
        return copied

    def __copy__(self) -> Any:
        return copy._reconstruct(self, None, *self._parts())  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        _join(self)

    def _apply(self, fn: Callable, recurse: bool = True) -> Any:
        """Move or cast the module, and move the histories of its delayed scales to the device of its parameters."""
        this: Any = super()._apply(fn, recurse)  # type: ignore[misc]
        histories, parameter = this.attachment.histories, next(this.parameters(), None)
        if histories is not None and parameter is not None:
            histories.to(parameter.device)
        return this

    def __prepare_scriptable__(self) -> Any:
        """Return copies of the modules for torch.jit.script, because it writes to `_modules` of all modules."""
        this: Any = self
        _warn_of_export()
        return _plain_tree(this, {})

    def _parts(self) -> tuple:
        """Return a tuple like that of `object.__reduce_ex__`, from which the object can be recreated."""
        parts: Any = super().__reduce_ex__(pickle.DEFAULT_PROTOCOL)
        make, arguments, *state = parts
        if make is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return make, arguments, *state
        kind = type(self)
        return _new, (kind.plain_class, kind.rounding_class), *state


@functools.cache
def attached_class(plain_class: Any, rounding_class: Any) -> type:
    """Return a subclass of `plain_class` that uses the forward method of `rounding_class`.

    If `rounding_class` is None, the subclass keeps the forward method of `plain_class`. Otherwise, while the forward
    method runs, the `Operations` attached to the module (operations.py) replace the functions that the method calls.
    """
    bases = (Attached, plain_class) if rounding_class is None else (Attached, rounding_class, plain_class)
    body: dict[str, Any] = {
        "plain_class": plain_class,
        "rounding_class": rounding_class,
        "__module__": __name__,
    }
    # the name of the class in TorchScript files
    body["_jit_override_qualname"] = _qualified_name(plain_class)
    if rounding_class is not None:

        @functools.wraps(plain_class.forward)  # libraries inspect the names of its parameters
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_exporting():
                return plain_class.forward(self, *args, **kwargs)
            operations = self.__dict__.get(OPERATIONS)
            if operations is None:
                return rounding_class.forward(self, *args, **kwargs)
            with operations.calls_of(self):
                return rounding_class.forward(self, *args, **kwargs)

        body["forward"] = forward
    created: Any = type(plain_class.__name__, bases, body)
    ForkingPickler.register(created, created._parts)  # determines what multiprocessing pickles
    return created


def is_exporting() -> bool:
    """Return whether torch.export, torch.jit.trace or torch.onnx.export is recording the model."""
    exporting = torch.compiler.is_exporting() or torch.jit.is_tracing()
    if exporting and not torch.compiler.is_dynamo_compiling():
        _warn_of_export()
    return exporting


def _warn_of_export() -> None:
    warnings.warn("custom_fp: rounding is not exported; the exported model computes in float32", stacklevel=2)


def attach_(module: nn.Module, rounding_class: type | None = None) -> Attachment:
    """Change the module's class to a subclass that rounds, and return its attachment.

    Args:
        module: Any module. If `attach_` already changed its class, the class is kept unless `rounding_class` is given.
        rounding_class: The class whose `forward` replaces the module's, or None to keep the module's own.
    """
    if not is_attached(module) or rounding_class is not None:
        plain_class: Any = module.__class__
        _set_class(module, attached_class(plain_class, rounding_class))
    return module.__dict__.setdefault("attachment", Attachment())


def class_of(module: nn.Module) -> type:
    """Return the user's class of a module, not the subclass that rounding, fully_shard or a parametrization made."""
    # If rounding is attached, `module.__class__` is the user's class, but `type(module)` is the subclass that rounds.
    kind: type = module.__class__.__bases__[0] if is_parametrized(module) else module.__class__
    fsdp = sys.modules.get("torch.distributed.fsdp")  # importing it would be slow
    if fsdp is not None and kind.__mro__[1] is fsdp.FSDPModule:
        kind = kind.__mro__[2]
    return kind


def is_attached(module: nn.Module) -> bool:
    """Return whether `attach_` created the module's class."""
    return issubclass(type(module), Attached)


def add_hooks_(module: nn.Module, before: Callable | None = None, after: Callable | None = None) -> None:
    """Register a forward pre-hook and a forward hook. They are copied with the module, but never saved."""
    hooks = attach_(module).hooks
    if before is not None:
        hooks.add(module.register_forward_pre_hook(before).id)
    if after is not None:
        hooks.add(module.register_forward_hook(after).id)


def override_(module: nn.Module, name: str, value: Any) -> None:
    """Set an attribute of the module. When the module is saved, the user's original value is written."""
    attach_(module).settings.setdefault(name, getattr(module, name))
    setattr(module, name, value)


def plain(module: nn.Module) -> Any:
    """Return the module without rounding: an object of its original class with its original attributes."""
    attachment = module.__dict__["attachment"]
    attributes = {name: value for name, value in module.__dict__.items() if name not in OURS}
    for name in HOOKS:
        kept = ((key, hook) for key, hook in attributes[name].items() if key not in attachment.hooks)
        attributes[name] = type(attributes[name])(kept)
    twin = object.__new__(module.__class__)
    object.__setattr__(twin, "__dict__", attributes | attachment.settings)
    return twin


def _plain_tree(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in copies:
        twin = copies[id(module)] = plain(module) if is_attached(module) else copy.copy(module)
        children = (
            (name, child if child is None else _plain_tree(child, copies))
            for name, child in module._modules.items()
        )
        twin.__dict__["_modules"] = type(module._modules)(children)
    return copies[id(module)]


def _set_class(module: Any, kind: type) -> None:
    object.__dict__["__class__"].__set__(module, kind)


def _new(plain_class: type, rounding_class: type | None) -> Any:
    return object.__new__(attached_class(plain_class, rounding_class))


def _join(copied: Any) -> None:
    """Register a copied module as one of the owners of its delayed scales."""
    histories = copied.attachment.histories
    if histories is not None:
        histories.owners.add(copied)
