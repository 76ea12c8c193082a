"""Hugging Face's Trainer: a callback that every Trainer gets inside a run.

    Trainer(..., callbacks=[CpdrunCallback()])      is the same by hand; outside of a run it does nothing

What Trainer logs is recorded under its names (loss, eval_loss, what compute_metrics gives with eval_ before it), less
what tells the time. Where the run is to stop, Trainer saves a checkpoint into the run's checkpoint_dir after the step
it is at, whatever its save_strategy, and the next `train()` goes on from there.
"""

import functools
from types import ModuleType
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

import cpdrun.attach
from cpdrun.attach.integrations import numbers_of

OF_TIME = ("_runtime", "_per_second", "total_flos", "epoch")


class CpdrunCallback(TrainerCallback):
    """One for a Trainer."""

    def __init__(self) -> None:
        self.run = cpdrun.attach()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        values = {k: v for k, v in numbers_of(logs or {}).items() if not k.endswith(OF_TIME)}
        if values:
            self.run.log(**{**values, "step": state.global_step, "epoch": state.epoch or 0.0})

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run.checkpoint_dir is not None and self.run.should_stop():
            args.output_dir = str(self.run.checkpoint_dir)
            control.should_save = control.should_training_stop = True


def install(module: ModuleType) -> None:
    """module: transformers.trainer."""
    construct, train = module.Trainer.__init__, module.Trainer.train

    @functools.wraps(construct)
    def with_callback(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if not any(isinstance(callback, CpdrunCallback) for callback in self.callback_handler.callbacks):
            self.add_callback(CpdrunCallback())

    @functools.wraps(train)
    def resumed(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        folder = cpdrun.attach().checkpoint_dir
        if not resume_from_checkpoint and folder is not None:
            resume_from_checkpoint = get_last_checkpoint(str(folder))
        return train(self, resume_from_checkpoint, *args, **kwargs)

    module.Trainer.__init__, module.Trainer.train = with_callback, resumed
