"""Integration of Accelerate.

The values that `accelerator.log(values, step=...)` logs are recorded, even without trackers. `save_state` also saves
the state of the run, and `load_state` loads it.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import cpdrun.attach
from cpdrun.attach.integrations import in_a_run, numbers_of

STATE_FILE = "cpdrun.pt"  # a file in the folder of a checkpoint


def install(module: ModuleType) -> None:
    """Wrap the methods of `Accelerator`. `module` is accelerate.accelerator."""
    module.Accelerator.__init__ = _with_state(module.Accelerator.__init__)
    module.Accelerator.log = _recorded(module.Accelerator.log)


def _recorded(log: Callable) -> Callable:
    @functools.wraps(log)
    def recorded(self: Any, values: dict, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        if numbers := numbers_of(values):
            cpdrun.attach().log(**numbers, **({} if step is None else {"step": step}))
        return log(self, values, step, *args, **kwargs)

    return recorded


def _with_state(construct: Callable) -> Callable:
    @functools.wraps(construct)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if not in_a_run():
            return

        def save(models: Any, weights: Any, folder: str) -> None:
            if (state := cpdrun.attach().state_dict()) and self.is_main_process:
                torch.save(state, Path(folder) / STATE_FILE)

        def load(models: Any, folder: str) -> None:
            if (file := Path(folder) / STATE_FILE).is_file():
                cpdrun.attach().load_state_dict(torch.load(file, weights_only=True))

        self.register_save_state_pre_hook(save)
        self.register_load_state_pre_hook(load)

    return constructed
