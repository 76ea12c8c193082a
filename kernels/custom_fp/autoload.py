"""What `import torch` runs where this package is installed (the entry point torch.backends of pyproject.toml).

A program that torch.export saved names operators, torch.ops.custom_fp.*, and no module that brings them: they are
registered when the first of them is asked for. Costs nothing until then. With TORCH_DEVICE_BACKEND_AUTOLOAD=0 import
custom_fp.ops before such a program is loaded.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


class _Waiting(ModuleType):
    """Stands at torch.ops.custom_fp until an operator is asked for; operators/registration.py takes it away."""

    def __getattr__(self, operator: str) -> object:
        if operator.startswith("__"):
            raise AttributeError(operator)
        import_module("custom_fp.ops")
        return getattr(sys.modules["torch"].ops.custom_fp, operator)


def install() -> None:
    sys.modules["torch"].ops.custom_fp = _Waiting("torch.ops.custom_fp")
