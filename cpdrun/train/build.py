"""From a run's config to its parts: dataset, model, optimizer, schedule, gradient synchronisation.

Each part is the class that its `_target_` names, called with the other keys beside it.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from torch import nn

from cpdrun.comm import GradientSync
from cpdrun.data.base import Data, DataError
from cpdrun.train.seeds import derived_seed


class BuildError(Exception):
    """A part of the run cannot be made; the message names the key and the cause."""


@dataclass(frozen=True)
class Parts:
    """All that a training run consists of."""

    data: Data
    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Callable[[float, float], float]
    sync: GradientSync


def build(config: dict[str, Any], device: torch.device) -> Parts:
    """Make every part of the run; initial weights depend on the seed alone. Raises BuildError."""
    data = build_data(config)
    model = build_model(config, data).to(device)
    steps = len(data.train) // (config["world_size"] * config["batch_size"])
    if steps < 1:
        raise BuildError(
            f"world_size * batch_size = {config['world_size'] * config['batch_size']} samples a step, "
            f"but the training set has {len(data.train)}: lower one of the two"
        )
    with _naming("optim"):
        optimizer = instantiate(config["optim"], _partial_=True, _convert_="all")(list(model.parameters()))
    with _naming("schedule"):
        schedule = instantiate(config["schedule"], _convert_="all")
    return Parts(data, model, optimizer, schedule, build_sync(config, model))


def build_data(config: dict[str, Any]) -> Data:
    with _naming("data"):
        return instantiate(config["data"], _convert_="all")


def build_model(config: dict[str, Any], data: Data) -> nn.Module:
    """The model of config["model"]; num_classes and in_channels come from the data where its class asks for
    them and the yaml does not set them."""
    with _naming("model"):
        spec = dict(config["model"])
        accepted = inspect.signature(get_class(spec["_target_"])).parameters
        for fact in ("num_classes", "in_channels"):
            if fact in accepted and spec.get(fact) is None and hasattr(data, fact):
                spec[fact] = getattr(data, fact)
        torch.manual_seed(derived_seed("weights", config["seed"]))
        return instantiate(spec, _convert_="all")


def build_sync(config: dict[str, Any], model: nn.Module) -> GradientSync:
    with _naming("sync"):
        return instantiate(
            config["sync"],
            format=config["format"],
            scaling=instantiate(config["scaling"]) if config["aps"] else None,
            world_size=config["world_size"],
            seed=config["seed"],
            epochs=config["epochs"],
            parameter_names=[name for name, _ in model.named_parameters()],
            full_precision=config["full_precision"],
            _convert_="all",
        )


@contextlib.contextmanager
def _naming(section: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        text = str(cause).splitlines()[0] if str(cause) else type(cause).__name__
        known = isinstance(cause, DataError | InstantiationException | ValueError)
        raise BuildError(f"{section}: {text if known else f'{type(cause).__name__}: {text}'}") from error
