"""Accelerate: what `accelerator.log(values, step=...)` gives its trackers is recorded too, with trackers or without."""

import functools
from types import ModuleType
from typing import Any

import cpdrun.attach
from cpdrun.attach.integrations import numbers_of


def install(module: ModuleType) -> None:
    """module: accelerate.accelerator."""
    log = module.Accelerator.log

    @functools.wraps(log)
    def recorded(self: Any, values: dict, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        if numbers := numbers_of(values):
            cpdrun.attach().log(**numbers, **({} if step is None else {"step": step}))
        return log(self, values, step, *args, **kwargs)

    module.Accelerator.log = recorded
