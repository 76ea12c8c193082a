"""Lightning: callbacks that record the metrics of Trainer and Fabric, and that let a Trainer resume.

Trainer: the metrics that `self.log` leaves in callback_metrics are recorded at the end of each epoch, and after other
validations and tests. When the run should stop, the Trainer saves into the run's checkpoint_dir at the end of its
epoch, because Lightning does not resume within one, and the script ends. The next attempt's `fit()` resumes from there.
The random states of each process are saved, too, which Lightning does not do. Every checkpoint of a Trainer contains
the state of the run.

Fabric: what `fabric.log` and `fabric.log_dict` log is recorded, too.

`lightning` and its older names (`pytorch_lightning`, `lightning_fabric`) are packages with classes of their own.
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
STATE_KEY = "cpdrun"  # in every checkpoint of a Trainer
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
        folder: Where the Trainer saves when the run should stop. None means that it is not asked to stop.
        stopped: Whether it has saved and stopped.
    """

    def __init__(self) -> None:
        self.run = cpdrun.attach()
        self.folder: Path | None = None
        self.stopped = False

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        # The validation at the end of an epoch is recorded with the epoch.
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
        # The epoch counts from 1 during fit, and is the number of epochs after it.
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


# Entry points of earlier installations name these, and Lightning calls them: they add nothing.
callbacks = callbacks_of_pytorch_lightning = callbacks_of_fabric = list


def install_fabric(module: ModuleType) -> None:
    """Add a callback to every Fabric. `module` is lightning.fabric.fabric, or lightning_fabric's."""
    _add_callback(module, _FabricCallback)


def _add_callback(module: Any, make: Callable[[], Any]) -> None:
    """Add a callback, inside a run, to those that Lightning finds by entry points."""
    load = module._load_external_callbacks

    @functools.wraps(load)
    def load_with_ours(group: str) -> list[Any]:
        return [*load(group), *([make()] if in_a_run() else [])]

    module._load_external_callbacks = load_with_ours


def install(module: ModuleType) -> None:
    """Add a callback to every Trainer, and let `fit` resume from where the run was stopped.

    `module` is lightning.pytorch.trainer.trainer, or pytorch_lightning's.
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
        # Each of several trainings in a script resumes from its own checkpoint.
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
