"""Run a training script with low-precision gradients and products, and record its metrics.

    python -m cpdrun.attach [-m MODULE | SCRIPT.py] ARGS     run a script in the run that CPDRUN_RUN_DIR names
    run = cpdrun.attach(model, optimizer)                    in the script itself: log metrics, resume, emulate workers

The package can be called like a function. Without CPDRUN_RUN_DIR in the environment, the call imports nothing, and the
methods of the returned object do nothing. The subpackage `intercept` changes the behavior of a script. The module `run`
contains the methods that a script may call.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that can be called. A call is passed on to cpdrun.attach.run.attach."""

    def __call__(self, *models_and_optimizers: Any, recipe: Any = None) -> Any:
        from cpdrun.attach.run import attach

        return attach(*models_and_optimizers, recipe=recipe)


sys.modules[__name__].__class__ = _Callable
