"""cpdrun around a training script: its gradients exchanged, its products rounded, its metrics recorded.

    python -m cpdrun.attach [-m MODULE | SCRIPT.py] ARGS     runs it inside the run that CPDRUN_RUN_DIR names
    run = cpdrun.attach(model, optimizer)                    in the script itself, where it wants to say more

So this package is a function too. Without CPDRUN_RUN_DIR in the environment the call imports nothing and what it gives
does nothing. What is held, when, and what is left alone: `hold.py`; what a script may call: `run.py`.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """cpdrun.attach(...) is cpdrun.attach.run.attach(...)."""

    def __call__(self, *models_and_optimizers: Any, recipe: Any = None) -> Any:
        from cpdrun.attach.run import attach

        return attach(*models_and_optimizers, recipe=recipe)


sys.modules[__name__].__class__ = _Callable
