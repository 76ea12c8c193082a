"""Integration of Hugging Face's Trainer: a callback that is added to every Trainer inside a run.

    Trainer(..., callbacks=[CpdrunCallback()])      adds the callback explicitly. Outside of a run, it does nothing.

The metrics that Trainer logs are recorded under Trainer's names (loss, eval_loss, the results of compute_metrics with
the prefix eval_), except for durations. When the run should stop, Trainer saves a checkpoint to the run's
checkpoint_dir after the current step, with any save_strategy, and the script ends. In the next attempt, `train()`
resumes from the checkpoint. Every checkpoint of Trainer contains the state of the run.
"""

import functools
import itertools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

import cpdrun.attach
from cpdrun.attach.integrations import in_a_run, numbers_of
from cpdrun.attach.run import Run

STATE_FILE = "cpdrun.pt"  # a file in the folder of a checkpoint
TIMES = ("_runtime", "_per_second", "total_flos", "epoch")


class CpdrunCallback(TrainerCallback):
    """The callback of one Trainer.

    Attributes:
        folder: The folder in which the Trainer saves a checkpoint when the run should stop. None means that the Trainer
            is never stopped.
        stopped: Whether the Trainer has saved a checkpoint and stopped.
    """

    def __init__(self) -> None:
        self.run = cpdrun.attach()
        self.folder: Path | None = None
        self.stopped = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        values = {k: v for k, v in numbers_of(logs or {}).items() if not k.endswith(TIMES)}
        if values:
            self.run.log(**{**values, "step": state.global_step, "epoch": state.epoch or 0.0})

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.folder is not None and self.run.should_stop():
            self.stopped = True
            args.output_dir, args.save_only_model = str(self.folder), False
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if (state_of_run := self.run.state_dict()) and args.should_save:
            torch.save(state_of_run, Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE)


def install(module: ModuleType) -> None:
    """Add the callback to every Trainer, and let `train` resume from a checkpoint. `module` is transformers.trainer."""
    construct, train = module.Trainer.__init__, module.Trainer.train
    numbers = itertools.count()

    @functools.wraps(construct)
    def with_callback(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        if _callback_of(self) is None:
            self.add_callback(CpdrunCallback())

    @functools.wraps(train)
    def resumed(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        # If a script calls train several times, each call resumes from its own checkpoint.
        number, callback = next(numbers), _callback_of(self)
        if callback is None or not in_a_run():
            return train(self, resume_from_checkpoint, *args, **kwargs)
        folder = callback.run.checkpoint_dir
        assert folder is not None
        callback.folder = folder / f"trainer{number}"
        if not resume_from_checkpoint and callback.folder.is_dir():
            resume_from_checkpoint = get_last_checkpoint(str(callback.folder))
        _load_state(self, resume_from_checkpoint, callback.run)
        result = train(self, resume_from_checkpoint, *args, **kwargs)
        if callback.stopped:
            raise SystemExit(os.EX_TEMPFAIL)
        return result

    module.Trainer.__init__, module.Trainer.train = with_callback, resumed


def _load_state(trainer: Any, resume_from: Any, run: Run) -> None:
    """Load the state of the run from a checkpoint.

    `resume_from` is the folder of the checkpoint. True means the Trainer's last checkpoint.
    """
    if resume_from is True:
        resume_from = get_last_checkpoint(trainer.args.output_dir)
    file = Path(resume_from or "") / STATE_FILE
    if resume_from and file.is_file():
        run.load_state_dict(torch.load(file, weights_only=True))


def _callback_of(trainer: Any) -> CpdrunCallback | None:
    return next((c for c in trainer.callback_handler.callbacks if isinstance(c, CpdrunCallback)), None)
