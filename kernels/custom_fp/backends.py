"""Which code runs: native for CPU tensors, cuda for CUDA tensors, reference where neither can."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType


@cache
def for_device(device_type: str) -> ModuleType:
    """The module that computes on tensors of this device type. Warns once where it is the slow reference."""
    from custom_fp import reference

    try:
        if device_type == "cpu":
            from custom_fp import native as module
        elif device_type == "cuda":
            from custom_fp import cuda as module
        else:
            return reference
    except ImportError as error:
        fix = "pip install ." if device_type == "cpu" else "pip install 'cpdrun[cuda13]' or 'cpdrun[cuda12]'"
        warnings.warn(
            f"custom_fp: no fast code for {device_type} tensors ({error}); the slow reference runs instead. "
            f"To fix it: {fix}",
            stacklevel=3,
        )
        return reference
    return module


def backend(device: str = "cpu") -> str:
    """Which code runs for tensors on `device` ("cpu" or "cuda"): "native", "cuda" or "reference"."""
    return for_device(str(device).split(":")[0]).__name__.rpartition(".")[2]
