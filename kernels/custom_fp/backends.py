"""Which code runs: of a format's BACKENDS the one for the tensor's device, "any" where that is not built or none is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from custom_fp.formats.names import KINDS
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format


@cache
def function(operator: str, kind: type[NumberFormat], device: str) -> Callable[..., Any]:
    """What computes an operator with a kind of format on tensors of a device type."""
    return getattr(_backend(kind, device), operator)


@cache
def check_knows(operator: str, kind: type[NumberFormat]) -> None:
    """Raises ValueError where an operator is not defined for a kind of format."""
    if not hasattr(_backend(kind, "any"), operator):
        allowed = [k.LOOKS_LIKE for k in KINDS.values() if hasattr(_backend(k, "any"), operator)]
        raise ValueError(f"{operator} is not defined for a {kind.__name__}; allowed: {', '.join(allowed)}")


def backend(device: str | torch.device = "cpu") -> str:
    """Which code runs for tensors on `device`, as torch has it ("cpu", "cuda:1"): "native", "cuda" or "reference".

    Raises ValueError for what torch knows no device by: the name of a format is none.
    """
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        raise ValueError(
            f"{device!r} is no device; allowed: torch's, such as 'cpu', 'cuda' or 'cuda:1'"
        ) from None
    return _backend(Format, kind).__name__.rpartition(".")[2]


def only_reference() -> None:
    """From here on this process computes everything by the definition."""
    _built.update(dict.fromkeys(Format.BACKENDS, False), any=True)
    function.cache_clear()
    _backend.cache_clear()


_built: dict[str, bool] = {}  # by device, as found, or as only_reference has it


@cache
def _backend(kind: type[NumberFormat], device: str) -> Any:
    is_there = device in kind.BACKENDS and (device not in Format.BACKENDS or _is_built(device))
    return _resolve(kind.BACKENDS[device if is_there else "any"])


def _is_built(device: str) -> bool:
    """Warns once where it is not, and the slow reference runs."""
    if device not in _built:
        _built[device] = _found(device)
    return _built[device]


def _found(device: str) -> bool:
    try:
        _resolve(Format.BACKENDS[device])
    except ImportError as error:
        fix = "pip install ." if device == "cpu" else "pip install 'cpdrun[cuda13]' or 'cpdrun[cuda12]'"
        warnings.warn(
            f"custom_fp: no fast code for {device} tensors ({error}); the slow reference runs instead. "
            f"To fix it: {fix}",
            stacklevel=4,
        )
        return False
    return True


def _resolve(where: str) -> Any:
    """`package.module`, or `package.module:name` in it."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)
