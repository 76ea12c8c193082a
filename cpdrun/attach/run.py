"""The object that cpdrun.attach returns: what a script may call. Outside of a run of cpdrun, its methods do nothing.

    run = cpdrun.attach(model, optimizer)
    run.log(epoch=1, val_loss=0.3)

and, in a script that emulates several workers in one process, or that saves and stops by itself:

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
    """The run of a script, or its stand-in outside of a run."""

    @property
    def workers(self) -> range:
        """The workers that this process emulates, numbered from 0. Outside of a run, this is one, the rank."""

    @property
    def checkpoint_dir(self) -> Path | None:
        """A folder for the script's checkpoints, the same when the run is resumed. None outside of a run."""

    def log(self, **values: float) -> None:
        """Record a row of metrics by name, with epoch=1 or step=100 among them."""

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        """Return the context of the forward and backward pass of worker w, on the mean loss of its own samples.

        After the last of `workers`, each parameter's `.grad` is the mean over all N workers, exchanged as the run says.
        Clip and step after that.

        Args:
            w: One of `workers`.
            divided: Whether the script divides its losses by the number of its micro-batches, as in gradient
                accumulation and with Accelerate. `.grad` is then their sum.
        """

    def should_stop(self) -> bool:
        """Return whether the script should save and end. All ranks must call this, and get the same answer."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the run keeps between steps, to be saved with the model and the optimizer.

        This contains residuals of error feedback, the step that stochastic rounding and rules depend on, and magnitudes
        of delayed scaling. torch.save saves it, and torch.load loads it with weights_only=True. It is empty if there is
        nothing, and outside of a run. All ranks must call this together; save what rank 0 gets.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load on every rank what rank 0 saved, before the next step.

        The weights are then those of a script that was not stopped. An empty state is accepted, too. Outside of a run,
        the state is ignored.
        """


class Outside:
    """A run without cpdrun: nothing happens."""

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
    """A run of cpdrun: the recorder takes metrics and questions, and the interceptor everything else."""

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
        *models_and_optimizers: Any number of them, in any order. Those that the script creates later need not be named.
        recipe: A recipe for the given models, as custom_fp.apply_recipe takes it. It is applied outside of a run, too.
            If the run has a recipe or precision rules, these are applied instead. With a recipe, call this before a
            model is wrapped or compiled.

    Raises:
        UserError: An argument is neither a model nor an optimizer, or the recipe cannot be applied.
    """
    models = [given for given in models_and_optimizers if _is_model(given)] if recipe is not None else []
    if recipe is not None and not models:
        raise UserError(f"cpdrun.attach(recipe={recipe!r}) needs the model: cpdrun.attach(model, recipe=...)")
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
