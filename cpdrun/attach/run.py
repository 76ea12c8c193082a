"""The object that cpdrun.attach returns, with the methods that a script may call.

Outside of a run of cpdrun, the methods do nothing.

    run = cpdrun.attach(model, optimizer)
    run.log(epoch=1, val_loss=0.3)

A script that emulates several workers in one process, or that saves and stops when the run is preempted, also contains:

    for w in run.workers:
        with run.worker(w):
            loss(model, batch_of(w)).backward()
    optimizer.step()
    if run.should_stop(): save({..., "run": run.state_dict()}, run.checkpoint_dir)
"""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from cpdrun.attach.environment import RUN_DIR
from cpdrun.errors import UserError


class Run(Protocol):
    """The interface of the object that cpdrun.attach returns, inside and outside of a run."""

    @property
    def workers(self) -> range:
        """The indices, from 0, of the workers that this process emulates. Outside of a run, only the rank itself."""

    @property
    def checkpoint_dir(self) -> Path | None:
        """The folder for the script's checkpoints. It is the same when the run is resumed. None outside of a run."""

    def log(self, **values: float) -> None:
        """Record a row of metrics by name. Pass the progress of the script, too, such as epoch=1 or step=100."""

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        """Return the context of the forward and backward pass of worker w, on the mean loss of the worker's samples.

        After the last of `workers`, each parameter's `.grad` is the mean over all N workers, exchanged in the run's
        format. Clip gradients and call the optimizer's step after that.

        Args:
            w: One of `workers`.
            divided: Whether the script divides its losses by the number of its micro-batches, as in gradient
                accumulation and with Accelerate. The gradients of this process's workers are then only added.
        """

    def should_stop(self) -> bool:
        """Return whether the script should save and end. All ranks must call this method. They get the same answer."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run between steps, to be saved with the model and the optimizer. Collective.

        The state contains the residuals of error feedback, the step number, on which stochastic rounding and rules
        depend, and the magnitudes of delayed scaling. It can be saved with torch.save and loaded with
        torch.load(weights_only=True). Save the state that rank 0 gets. The state is empty if nothing must be saved, and
        outside of a run.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that rank 0 saved. Call this on every rank, before the next step.

        The resumed script then computes the same weights as a script that was not stopped. An empty state is accepted,
        too. Outside of a run, the state is ignored.
        """


class Outside:
    """The object that is returned outside of a run. Its methods do nothing."""

    checkpoint_dir = None

    @property
    def workers(self) -> range:
        rank = int(os.environ.get("RANK", "0"))
        return range(rank, rank + 1)

    def log(self, **values: float) -> None:
        pass

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def should_stop(self) -> bool:
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Inside:
    """The object that is returned inside a run. It passes calls on to the recorder and the interceptor."""

    def __init__(self, interceptor: Any, recorder: Any) -> None:
        self._interceptor, self._recorder = interceptor, recorder

    @property
    def workers(self) -> range:
        return self._interceptor.workers

    @property
    def checkpoint_dir(self) -> Path:
        return self._recorder.checkpoint_dir

    def log(self, **values: float) -> None:
        self._recorder.log(values)

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        return self._interceptor.worker(w, divided=divided)

    def should_stop(self) -> bool:
        return self._recorder.should_stop()

    def state_dict(self) -> dict[str, Any]:
        return self._interceptor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._interceptor.load_state_dict(state)


def attach(*models_and_optimizers: Any, recipe: Any = None) -> Run:
    """Return the run of this script, and intercept models and optimizers that were created before this call.

    Args:
        *models_and_optimizers: Models and optimizers that were created before this call, in any order. Those that the
            script creates later need not be passed.
        recipe: A recipe for the given models, as in custom_fp.apply_recipe. It is applied outside of a run, too. If the
            run has a recipe or precision rules, these are applied instead. With a recipe, call this function before a
            model is wrapped or compiled.

    Raises:
        UserError: An argument is neither a model nor an optimizer, or the recipe cannot be applied.
    """
    models = [given for given in models_and_optimizers if _is_model(given)] if recipe is not None else []
    if recipe is not None and not models:
        raise UserError(
            f"cpdrun.attach(recipe={recipe!r}) needs a model. Call cpdrun.attach(model, recipe=...) instead"
        )
    if RUN_DIR not in os.environ:
        for model in models:
            _apply(model, recipe)
        return Outside()
    from cpdrun.attach.intercept.interceptor import interceptor_of_process
    from cpdrun.attach.recorder import Recorder

    interceptor, recorder = interceptor_of_process(), Recorder.from_environment()
    for model in models:
        interceptor.apply_recipe(model, recipe)
    for given in models_and_optimizers:
        interceptor.add(given)
    return Inside(interceptor, recorder)


def _is_model(given: Any) -> bool:
    from torch import nn

    return isinstance(given, nn.Module)


def _apply(model: Any, recipe: Any) -> None:
    """Apply a recipe outside of a run, and print what is rounded and what stays in float32."""
    from custom_fp.recipe.apply import apply_recipe

    from cpdrun.attach.intercept.script import unwrapped

    try:
        print(apply_recipe(unwrapped(model), recipe), file=sys.stderr)
    except ValueError as error:
        raise UserError(f"cpdrun.attach: {error}") from None
