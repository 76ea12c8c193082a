"""Integration of Lightning: callbacks that record the metrics of Trainer and Fabric, and that let a Trainer resume.

Trainer: the metrics that `self.log` stores in callback_metrics are recorded at the end of each epoch, and after
validations and tests outside of an epoch. When the run should stop, the Trainer saves a checkpoint to the run's
checkpoint_dir, and the script ends. This happens at the end of an epoch, because Lightning does not resume inside an
epoch. In the next attempt, `fit()` resumes from the checkpoint. The random states of each process are saved, too, which
Lightning does not do. Every checkpoint of a Trainer contains the state of the run.

Fabric: the values that `fabric.log` and `fabric.log_dict` log are recorded.

`lightning` and its older names (`pytorch_lightning`, `lightning_fabric`) are separate packages with different classes.
"""

import functools
import itertools
import os
import random
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch

import cpdrun.attach
from cpdrun.attach.integrations import in_a_run, numbers_of

CHECKPOINT = "lightning.ckpt"
STATE_KEY = "cpdrun"  # a key in every checkpoint of a Trainer
RANDOM = "random{rank}.pt"
ARGUMENTS = (
    "model",
    "train_dataloaders",
    "val_dataloaders",
    "datamodule",
    "ckpt_path",
    "weights_only",
)  # of fit


class _Recorded:
    """The callback of a Trainer.

    Attributes:
        folder: The folder in which the Trainer saves a checkpoint when the run should stop. None means that the Trainer
            is never stopped.
        stopped: Whether the Trainer has saved a checkpoint and stopped.
    """

    def __init__(self) -> None:
        self.run = cpdrun.attach()
        self.folder: Path | None = None
        self.stopped = False

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        # Do not record the validation at the end of an epoch here, because on_train_epoch_end records it.
        at_its_end = trainer.state.fn == "fit" and trainer.is_last_batch
        if not trainer.sanity_checking and not at_its_end:
            self._log(trainer)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer)
        if self.folder is not None and self.run.should_stop():
            self.folder.mkdir(exist_ok=True)
            torch.save(_random_states(), self._random(trainer))
            trainer.save_checkpoint(self.folder / CHECKPOINT)
            self.stopped = trainer.should_stop = True

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if state := self.run.state_dict():
            checkpoint[STATE_KEY] = state

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            self.run.load_state_dict(checkpoint.get(STATE_KEY, {}))
        # Set random states now, before the data loaders of the next epoch use them.
        if self.folder is not None and str(trainer.ckpt_path) == str(self.folder / CHECKPOINT):
            _set_random_states(torch.load(self._random(trainer), weights_only=True))

    def _random(self, trainer: Any) -> Path:
        assert self.folder is not None
        return self.folder / RANDOM.format(rank=trainer.global_rank)

    def _log(self, trainer: Any) -> None:
        # Epochs are recorded from 1 on. During fit, current_epoch counts from 0. After fit, it is the number of epochs.
        epoch = trainer.current_epoch + (trainer.state.fn == "fit")
        if values := numbers_of(trainer.callback_metrics):
            self.run.log(**{**values, "epoch": epoch, "step": trainer.global_step})


def _random_states() -> dict[str, Any]:
    state: Any = numpy.random.get_state()
    kind, keys, *rest = state
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpys = [kind, keys.tolist(), *rest]
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate(), "numpy": numpys}


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    torch.cuda.set_rng_state_all(states["cuda"])
    random.setstate(states["python"])
    numpy.random.set_state(tuple(states["numpy"]))


class _FabricLogger:
    """A logger of Fabric that records metrics in the run."""

    name, version = "cpdrun", ""

    def __init__(self) -> None:
        self.run = cpdrun.attach()

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if values := numbers_of(metrics):
            self.run.log(**values, **({} if step is None else {"step": step}))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


class _FabricCallback:
    def on_after_setup(self, fabric: Any, module: Any) -> None:
        if not any(isinstance(logger, _FabricLogger) for logger in fabric.loggers):
            fabric.loggers.append(_FabricLogger())


# Lightning may still call these functions, because earlier versions of cpdrun had entry points for them. They return no
# callbacks.
callbacks = callbacks_of_pytorch_lightning = callbacks_of_fabric = list


def install_fabric(module: ModuleType) -> None:
    """Add a callback to every Fabric. `module` is lightning.fabric.fabric or lightning_fabric.fabric."""
    _add_callback(module, _FabricCallback)


def _add_callback(module: Any, make: Callable[[], Any]) -> None:
    """Add a callback to the callbacks that Lightning loads from entry points, if this process is part of a run."""
    load = module._load_external_callbacks

    @functools.wraps(load)
    def load_with_ours(group: str) -> list[Any]:
        return [*load(group), *([make()] if in_a_run() else [])]

    module._load_external_callbacks = load_with_ours


def install(module: ModuleType) -> None:
    """Add a callback to every Trainer, and let `fit` resume from the checkpoint of a stopped run.

    `module` is lightning.pytorch.trainer.trainer or pytorch_lightning.trainer.trainer.
    """
    package = module.__name__.removesuffix(".trainer.trainer")
    base = import_module(f"{package}.callbacks").Callback
    _add_callback(
        import_module(f"{package}.trainer.connectors.callback_connector"),
        lambda: type("CpdrunCallback", (_Recorded, base), {})(),
    )
    fit = module.Trainer.fit
    numbers = itertools.count()

    @functools.wraps(fit)
    def resumed(self: Any, *args: Any, **kwargs: Any) -> Any:
        # If a script calls fit several times, each call resumes from its own checkpoint.
        number, callback = next(numbers), next((c for c in self.callbacks if isinstance(c, _Recorded)), None)
        if callback is None or not in_a_run():
            return fit(self, *args, **kwargs)
        folder = callback.run.checkpoint_dir
        assert folder is not None
        callback.folder = folder / f"lightning{number}"
        given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
        if given.get("ckpt_path") is None and (callback.folder / CHECKPOINT).is_file():
            given["ckpt_path"] = str(callback.folder / CHECKPOINT)
        result = fit(self, **given)
        if callback.stopped:
            raise SystemExit(os.EX_TEMPFAIL)
        return result

    module.Trainer.fit = resumed
