"""Hugging Face's Trainer: a callback that every Trainer gets inside a run.

    Trainer(..., callbacks=[CpdrunCallback()])      is the same by hand; outside of a run it does nothing

What Trainer logs is recorded under its names (loss, eval_loss, what compute_metrics gives with eval_ before it), less
what tells the time. Where the run is to stop, Trainer saves a checkpoint into the run's checkpoint_dir after the step
it is at, whatever its save_strategy, and the script ends there; the next one's `train()` goes on from it.
"""

import functools
import itertools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

import cpdrun.attach
from cpdrun.attach.integrations import may_go_on, numbers_of

OF_TIME = ("_runtime", "_per_second", "total_flos", "epoch")


class CpdrunCallback(TrainerCallback):
    """One for a Trainer. folder: where it saves when it is to stop; None: it is not asked to."""

    def __init__(self) -> None:
        self.run = cpdrun.attach()
        self.folder: Path | None = None
        self.stopped = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        values = {k: v for k, v in numbers_of(logs or {}).items() if not k.endswith(OF_TIME)}
        if values:
            self.run.log(**{**values, "step": state.global_step, "epoch": state.epoch or 0.0})

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.folder is not None and self.run.should_stop():
            self.stopped = True
            args.output_dir, args.save_only_model = str(self.folder), False
            control.should_save = control.should_training_stop = True


def install(module: ModuleType) -> None:
    """module: transformers.trainer."""
    construct, train = module.Trainer.__init__, module.Trainer.train
    numbers = itertools.count()

    @functools.wraps(construct)
    def with_callback(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if _callback_of(self) is None:
            self.add_callback(CpdrunCallback())

    @functools.wraps(train)
    def resumed(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        # of several trainings in a script each goes on from its own
        number, callback = next(numbers), _callback_of(self)
        if callback is None or not may_go_on():
            return train(self, resume_from_checkpoint, *args, **kwargs)
        callback.folder = callback.run.checkpoint_dir / f"trainer{number}"
        if not resume_from_checkpoint and callback.folder.is_dir():
            resume_from_checkpoint = get_last_checkpoint(str(callback.folder))
        result = train(self, resume_from_checkpoint, *args, **kwargs)
        if callback.stopped:
            raise SystemExit(os.EX_TEMPFAIL)
        return result

    module.Trainer.__init__, module.Trainer.train = with_callback, resumed


def _callback_of(trainer: Any) -> CpdrunCallback | None:
    return next((c for c in trainer.callback_handler.callbacks if isinstance(c, CpdrunCallback)), None)
