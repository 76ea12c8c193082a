"""Select the code that computes an operator: the backend for the tensor's device, or the reference implementation.

The attribute `backends` of a format names one module for each device type, and the reference implementation as `any`.
The reference implementation runs if the device type has no backend or if its backend is not installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch

from custom_fp.formats.names import KINDS, parse
from custom_fp.formats.protocol import Backends
from custom_fp.formats.scalar import Format


@cache
def function(operator: str, backends: Backends, device: str) -> Callable[..., Any]:
    """Return the function that computes an operator on a device type, for formats with the given backends."""
    return getattr(_backend(backends, device), operator)


def check_knows(operator: str, fmt: Any) -> None:
    """Raise ValueError if an operator does not support a format or an accumulator."""
    if not hasattr(_backend(fmt.backends, "any"), operator):
        examples = {kind.LOOKS_LIKE: parse(kind.EXAMPLES[0]).backends for kind in KINDS.values()}
        allowed = [names for names, of in examples.items() if hasattr(_backend(of, "any"), operator)]
        raise ValueError(
            f"{operator} is not defined for a {type(fmt).__name__}; allowed: {', '.join(allowed)}"
        )


def backend(device: str | torch.device = "cpu") -> str:
    """Return which backend computes results for tensors on a device: "native", "cuda" or "reference".

    Args:
        device: A PyTorch device or its name, such as "cpu" or "cuda:1".

    Raises:
        ValueError: `device` is not a PyTorch device.
    """
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        raise ValueError(
            f"{device!r} is not a device; allowed: PyTorch devices, such as 'cpu', 'cuda' or 'cuda:1'"
        ) from None
    return _backend(Format.BACKENDS, kind).__name__.rpartition(".")[2]


def instruction_set() -> str | None:
    """Return the instruction set of the CPU kernels: "baseline", "avx2" or "avx512", or None without compiled kernels.

    The environment variable CUSTOM_FP_ISA selects a lower instruction set. All of them give the same bits.
    """
    return import_module("custom_fp._native").isa() if backend("cpu") == "native" else None


def only_reference() -> None:
    """Use the reference implementation for all computations of this process from now on."""
    _built.update(dict.fromkeys(Backends._fields, False), any=True)
    function.cache_clear()
    _backend.cache_clear()


_built: dict[str, bool] = {}  # device type -> whether its backend is used


@cache
def _backend(backends: Backends, device: str) -> Any:
    where: str | None = getattr(backends, device, None)
    if where is None or not (device == "any" or _is_built(device)):
        where = backends.any
    return _resolve(where)


def _is_built(device: str) -> bool:
    """Return whether the backend of a device type can be imported. Warn once if it cannot."""
    if device not in _built:
        _built[device] = _can_import(device)
    return _built[device]


_FIXES = {
    "cpu": "install a C++ compiler and Python's headers (on Debian and Ubuntu: apt install g++ python3-dev) and "
    "install custom_fp again",
    "cuda": "run pip install cupy-cuda13x, or cupy-cuda12x for CUDA 12",
}


def _can_import(device: str) -> bool:
    """Return whether the kernels for a device type can be imported. Warn if they cannot.

    Raises:
        ValueError: The environment variable CUSTOM_FP_ISA names an instruction set that this processor lacks.
    """
    try:
        _resolve(getattr(Format.BACKENDS, device))
    except ImportError as error:
        if isinstance(error.__cause__, ValueError):  # the extension was loaded, but rejected CUSTOM_FP_ISA
            raise error.__cause__ from None
        warnings.warn(
            f"custom_fp has no compiled kernels for {device} tensors ({error}). Its reference implementation runs "
            f"instead: the results are the same, but it is many times slower. To fix this, {_FIXES[device]}.",
            stacklevel=4,
        )
        return False
    return True


def _resolve(where: str) -> Any:
    """Import `package.module`, or return the object that `package.module:name` names."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)
