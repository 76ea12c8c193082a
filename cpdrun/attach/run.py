"""What a script may call of cpdrun: two lines, which do nothing where cpdrun is not around.

    run = cpdrun.attach(model, optimizer)
    run.log(epoch=1, val_loss=0.3)

and, in a script that plays several workers on one process, or saves and stops by itself:

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
    """What `cpdrun.attach` gives, inside a run and outside of one."""

    @property
    def workers(self) -> range:
        """Those that this process plays: of N, numbered from 0. Outside of a run one, by its rank."""

    @property
    def checkpoint_dir(self) -> Path | None:
        """A folder of the run for the script's own checkpoints, the same when it is started again; None outside."""

    def log(self, **values: float) -> None:
        """One row of the run's record: epoch=1 or step=100, and metrics by their names."""

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        """Around forward and backward of worker w, on the mean loss of its own samples. Once all `workers` have been,
        each parameter's `.grad` is the mean over all N workers, exchanged as the run says: clip and step after that.

        divided=True: the script divides the losses by the number of its micro-batches already, as Accelerate and
        gradient accumulation in general do; then `.grad` is their sum.
        """

    def should_stop(self) -> bool:
        """Whether the run is asked to save and end: the same on every rank. Collective."""

    def state_dict(self) -> dict[str, Any]:
        """What the run remembers between steps (residuals of error feedback, the step that stochastic rounding and
        rules go by, the magnitudes of delayed APS), to be saved with the model and the optimizer: torch.save takes it,
        and torch.load with weights_only=True. {} where there is nothing, and outside of a run. Collective: every rank
        calls it, and what rank 0 gets is to be saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """On every rank what rank 0 saved, before the next step: the weights are then those of a script that was not
        stopped. {} is taken too, and outside of a run whatever it is."""


class Outside:
    """Without cpdrun: nothing happens."""

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
    """In a run: what is logged and asked goes to its `Recorder`, all else to its `Hold`."""

    def __init__(self, hold: Any, recorder: Any) -> None:
        self._hold, self._recorder = hold, recorder

    @property
    def workers(self) -> range:
        return self._hold.workers

    @property
    def checkpoint_dir(self) -> Path:
        return self._recorder.checkpoint_dir

    def log(self, **values: float) -> None:
        self._recorder.log(values)

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        return self._hold.worker(w, divided=divided)

    def should_stop(self) -> bool:
        return self._recorder.should_stop()

    def state_dict(self) -> dict[str, Any]:
        return self._hold.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._hold.load_state_dict(state)


def attach(*models_and_optimizers: Any, recipe: Any = None) -> Run:
    """The run around this script; models and optimizers (any number, in any order) that were made before are taken hold
    of. Raises UserError for anything else.

    recipe: what the models given compute by, as custom_fp.apply_recipe takes it, with cpdrun around the script or
    without; a run with a recipe or precision rules of its own has these in its place. To be called before a model is
    wrapped or compiled.
    """
    models = [given for given in models_and_optimizers if _is_model(given)] if recipe is not None else []
    if recipe is not None and not models:
        raise UserError(f"cpdrun.attach(recipe={recipe!r}) needs the model: cpdrun.attach(model, recipe=...)")
    if RUN_DIR not in os.environ:
        for model in models:
            _apply(model, recipe)
        return Outside()
    from cpdrun.attach.hold import Hold
    from cpdrun.attach.recorder import Recorder

    hold, recorder = Hold.around(), Recorder.from_environment()
    for model in models:
        hold.take_recipe(model, recipe)
    for given in models_and_optimizers:
        hold.take(given)
    return Inside(hold, recorder)


def _is_model(given: Any) -> bool:
    from torch import nn

    return isinstance(given, nn.Module)


def _apply(model: Any, recipe: Any) -> None:
    """Without a run around; what stays in float32 is said once."""
    from custom_fp.recipe.apply import apply_recipe

    from cpdrun.attach.held.models import unwrapped

    try:
        print(apply_recipe(unwrapped(model), recipe), file=sys.stderr)
    except ValueError as error:
        raise UserError(f"cpdrun.attach: {error}") from None
