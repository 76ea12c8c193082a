"""From a run's config to its parts: dataset, model, optimizer, schedule, gradient synchronisation.

Each part is the class that its `_target_` names, called with the other keys beside it.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from cpdrun.comm import GradientSync
from cpdrun.comm.gossip.base import Gossip
from cpdrun.comm.sync.local import OuterStep
from cpdrun.data.base import Data, DataError, states
from cpdrun.data.partition import Iid, InOrder, Partition
from cpdrun.data.stream import Stream, length_of
from cpdrun.optim.groups import ParameterGroups, trainable
from cpdrun.tasks.base import Task
from cpdrun.train.batches import Batches
from cpdrun.train.course import Course
from cpdrun.train.fit import SPLITS, unfit_data, unfit_model
from cpdrun.train.giving_up import GivingUp
from cpdrun.train.instantiate import BuildError, locate, naming, part
from cpdrun.train.precision.base import Precision
from cpdrun.train.seeds import derived_seed
from cpdrun.train.state.init_from import InitFrom


@dataclass(frozen=True)
class Parts:
    """All that a training run consists of."""

    data: Data
    task: Task
    course: Course
    batches: Batches
    eval_batch: int
    partition: Partition
    model: nn.Module
    optimizer: Optimizer
    make_optimizer: Callable[[list[nn.Parameter]], Optimizer]  # one like `optimizer`, for other weights
    schedule: Callable[[float, float], float]
    precision: Precision
    sync: GradientSync | Gossip | OuterStep
    learner: type  # of cpdrun.train.learners, for this sync
    giving_up: GivingUp


def build(config: dict[str, Any], device: torch.device) -> Parts:
    """Make every part of the run; initial weights depend on the seed alone. Raises BuildError."""
    data = build_data(config)
    task = build_task(config, data)
    course = course_of(config, data)
    giving_up = giving_up_of(config, task, course)
    partition = part("partition", config["partition"])
    data, partition = _dealt_by_number(config, data, partition, course)
    precision = part("precision", config["precision"])
    precision.seed, precision.steps = config["seed"], course.steps
    layout = torch.channels_last if config["channels_last"] else torch.preserve_format
    model = build_model(config, data)
    if problem := unfit_model(model):
        raise BuildError(f"model: {problem}")
    load_initial_weights(config, model)
    model = model.to(device, memory_format=layout)
    make_optimizer = build_optimizer(config, model)
    with naming("precision"):
        model = precision.prepare(model)
    optimizer = make_optimizer(list(trainable(model).values()))
    with naming("precision"):
        precision.check(optimizer)
    schedule = part("schedule", config["schedule"])
    sync = build_sync(config, model, course)
    learner = _learner(config, precision, sync)
    with naming("schedule"):
        schedule(0.0, course.length)
    batches = Batches(data, config["seed"], device, config["loaders"], config["channels_last"])
    return Parts(
        data,
        task,
        course,
        batches,
        config["eval_batch"],
        partition,
        model,
        optimizer,
        make_optimizer,
        schedule,
        precision,
        sync,
        learner,
        giving_up,
    )


def _learner(config: dict[str, Any], precision: Precision, sync: GradientSync | Gossip | OuterStep) -> type:
    """The class that the sync names. Raises BuildError for settings that make no sense with it."""
    learner = locate(sync.learner)
    try:
        learner.check(config, precision, sync)
    except ValueError as error:
        raise BuildError(str(error)) from None
    return learner


def build_data(config: dict[str, Any]) -> Data:
    """Raises BuildError."""
    data = part("data", config["data"])
    if problem := unfit_data(data):
        raise BuildError(f"data: {problem}")
    return data


def course_of(config: dict[str, Any], data: Data) -> Course:
    """How long the run is (a config.yaml older than max_steps has none). Raises BuildError."""
    per_step = config["world_size"] * config["batch_size"]
    try:
        return Course.of(length_of(data.train), per_step, config["epochs"], config.get("max_steps"))
    except ValueError as error:
        raise BuildError(str(error)) from None


def giving_up_of(config: dict[str, Any], task: Task, course: Course) -> GivingUp:
    """When the run ends as one that did not learn (a config.yaml older than the key: never). Raises BuildError."""
    share = config.get("give_up_after")
    if share is not None and task.loss_range() is None:
        raise BuildError(
            f"give_up_after={share}: {type(task).__name__} does not say what a guess's loss is; type give_up_after=null"
        )
    return GivingUp.of(share, course)


def _dealt_by_number(
    config: dict[str, Any], data: Data, partition: Partition, course: Course
) -> tuple[Data, Partition]:
    """The same data with streams as numbered samples; those of the training set are dealt as they come."""
    streams = [name for name in SPLITS if isinstance(getattr(data, name), IterableDataset)]
    data = copy.copy(data) if streams else data
    with naming("data"):
        if "test" in streams:
            samples = length_of(data.test)
            samples = sum(1 for _ in data.test) if samples is None else samples
            if samples == 0:
                raise DataError(f"test of {type(data).__name__} is empty")
            data.test = Stream(data.test, samples)
    if "train" not in streams:
        return data, partition
    if not isinstance(partition, Iid):
        raise BuildError("partition: the samples of a stream are dealt as they come: type partition=iid")
    data.train = Stream(data.train, course.S * config["world_size"] * config["batch_size"])
    return data, InOrder()


def build_task(config: dict[str, Any], data: Data) -> Task:
    """The task of config["task"]; raises BuildError, also for label smoothing that it does not do."""
    spec, smoothing = config["task"], config["label_smoothing"]
    if "label_smoothing" in _asked_for("task", spec):
        spec = {"label_smoothing": smoothing, **spec}
    elif smoothing:
        name = spec["_target_"].rsplit(".", 1)[-1]
        raise BuildError(f"label_smoothing={smoothing}: {name} smooths no labels; type label_smoothing=0")
    return part("task", _with_facts("task", spec, data))


def build_model(config: dict[str, Any], data: Data) -> nn.Module:
    """The model of config["model"]: what its class asks for and the yaml does not set comes from what the data states.
    num_classes also goes where any keyword is taken (timm.create_model)."""
    spec = _with_facts("model", config["model"], data)
    asked_for = _asked_for("model", spec).values()
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in asked_for)
    if anything and "num_classes" not in spec and states(data, "num_classes"):
        with contextlib.suppress(BuildError):  # what it hands its keywords to may not take this one
            return _make_model(config, {**spec, "num_classes": data.num_classes})
    return _make_model(config, spec)


def _with_facts(section: str, spec: dict[str, Any], data: Data) -> dict[str, Any]:
    """`spec` with the facts of `data` that its class has an argument for and the yaml no value."""
    missing = [name for name in _asked_for(section, spec) if spec.get(name) is None]
    return spec | {name: getattr(data, name) for name in missing if states(data, name)}


def _asked_for(section: str, spec: dict[str, Any]) -> Mapping[str, inspect.Parameter]:
    """The arguments of the class that `spec` names, by their names."""
    with naming(section):
        return inspect.signature(locate(spec["_target_"])).parameters


def _make_model(config: dict[str, Any], spec: dict[str, Any]) -> nn.Module:
    torch.manual_seed(derived_seed("weights", config["seed"]))
    return part("model", spec)


def load_initial_weights(config: dict[str, Any], model: nn.Module) -> None:
    """Those of init_from, where it is given (a config.yaml older than the key gives none). Raises BuildError."""
    if config.get("init_from") is not None:
        with naming("init_from"):
            path = Path(config["init_from"])
            InitFrom(path, config["init_sha256"], config["init_into"], config["init_skip"]).load_into(model)


def build_optimizer(config: dict[str, Any], model: nn.Module) -> Callable[[list[nn.Parameter]], Optimizer]:
    """Makes the run's optimizer of parameters that stand for the model's, in their order. Raises BuildError."""
    make = part("optim", config["optim"], _partial_=True)
    with naming("parameter_groups"):
        of = getattr(make.func, "settings_of", None)
        own = None if of is None else partial(of, arguments=make.keywords)
        groups = ParameterGroups(model, groups_of(config), own)

    def make_optimizer(parameters: list[nn.Parameter]) -> Optimizer:
        with naming("optim"):
            return groups.optimizer(make, parameters)

    return make_optimizer


def groups_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    """None in a config.yaml that is older than the key: a run without groups has the name that it had then."""
    return config.get("parameter_groups", [])


def build_sync(config: dict[str, Any], model: nn.Module, course: Course) -> GradientSync | Gossip | OuterStep:
    make = part("sync", config["sync"], _partial_=True)
    scaling = part("scaling", config["scaling"]) if config["aps"] else None
    with naming("sync"):
        return make(
            format=config["format"],
            scaling=scaling,
            world_size=config["world_size"],
            seed=config["seed"],
            epochs=course.epochs,
            parameter_names=list(trainable(model)),
            full_precision=config["full_precision"],
        )
