"""Build the parts of a run from its config: dataset, model, optimizer, schedule, gradient synchronization.

Each part is an instance of the class that `_target_` names. The other keys of its section are the arguments.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from cpdrun.comm import GradientSync
from cpdrun.comm.gossip.base import Gossip
from cpdrun.comm.sync.local import OuterStep
from cpdrun.config.input_files import find_input_files
from cpdrun.data.base import Data, DataError, states
from cpdrun.data.partition import Iid, InOrder, Partition
from cpdrun.data.stream import Stream, length_of
from cpdrun.optim.groups import ParameterGroups, trainable
from cpdrun.tasks.base import Task
from cpdrun.train.batches import Batches
from cpdrun.train.duration import Duration, EarlyStopping
from cpdrun.train.instantiate import BuildError, locate, naming, part
from cpdrun.train.precision.base import Precision
from cpdrun.train.seeds import derived_seed
from cpdrun.train.state.init_from import InitFrom

SPLITS = ("train", "test")


Sync = TypeVar("Sync", bound=GradientSync | Gossip | OuterStep, covariant=True)


@dataclass(frozen=True)
class Parts(Generic[Sync]):
    """The parts of a training run, with a given class of synchronization.

    Attributes:
        make_optimizer: Makes an optimizer like `optimizer` for other parameters.
        schedule: Returns the learning-rate factor, given the position and the length of the run in epochs.
        learner: The class of cpdrun.train.learners that `sync` requires.
    """

    data: Data
    task: Task
    duration: Duration
    batches: Batches
    eval_batch: int
    partition: Partition
    model: nn.Module
    optimizer: Optimizer
    make_optimizer: Callable[[list[nn.Parameter]], Optimizer]
    schedule: Callable[[float, float], float]
    precision: Precision
    sync: Sync
    learner: type
    early_stopping: EarlyStopping


def build(config: dict[str, Any], device: torch.device) -> Parts:
    """Make all parts of a run. The initial weights depend on the seed only.

    Raises:
        BuildError: A part cannot be made, or does not fit the others.
        ConfigError: A file that the data or the model read has changed since the run was planned.
    """
    find_input_files({key: config[key] for key in ("data", "model")})  # compares the digests
    data = build_data(config)
    task = build_task(config, data)
    duration = build_duration(config, data)
    early_stopping = build_early_stopping(config, task, duration)
    partition = part("partition", config["partition"])
    data, partition = _index_streams(config, data, partition, duration)
    precision = part("precision", config["precision"])
    precision.seed, precision.steps = config["seed"], duration.steps
    layout = torch.channels_last if config["channels_last"] else torch.preserve_format
    model = build_model(config, data)
    _check_model(model)
    load_initial_weights(config, model)
    model = model.to(device).to(memory_format=layout)
    make_optimizer = build_optimizer(config, model)
    with naming("precision"):
        model = precision.prepare(model)
    optimizer = make_optimizer(list(trainable(model).values()))
    with naming("precision"):
        precision.check(optimizer)
    schedule = part("schedule", config["schedule"])
    sync = build_sync(config, model, duration)
    learner = locate(sync.learner)
    try:
        learner.check(config, precision, sync)
    except ValueError as error:
        raise BuildError(str(error)) from None
    if config.get("init_optimizer"):
        load_initial_optimizer(config, optimizer, learner)
    with naming("schedule"):
        schedule(0.0, duration.length)
    return Parts(
        data=data,
        task=task,
        duration=duration,
        batches=Batches(data, config["seed"], device, config["loaders"], config["channels_last"]),
        eval_batch=config["eval_batch"],
        partition=partition,
        model=model,
        optimizer=optimizer,
        make_optimizer=make_optimizer,
        schedule=schedule,
        precision=precision,
        sync=sync,
        learner=learner,
        early_stopping=early_stopping,
    )


def build_data(config: dict[str, Any]) -> Data:
    """Make the dataset.

    Raises:
        BuildError: The dataset cannot be made, or the training loop cannot use it.
    """
    data = part("data", config["data"])
    if problem := _data_problem(data):
        raise BuildError(f"data: {problem}")
    return data


def _data_problem(data: Any) -> str | None:
    """Describe in one line why the training loop cannot use `data`, or return None. Reads no sample."""
    name = type(data).__name__
    for split in SPLITS:
        dataset = getattr(data, split, None)
        if dataset is None:
            return f"{name} has no {split}. A data class needs train and test, see cpdrun/tasks/__init__.py"
        if isinstance(dataset, IterableDataset):
            continue
        if not hasattr(dataset, "__getitem__"):
            return (
                f"{split} of {name} is a {type(dataset).__name__} without numbered samples. It must have __len__ and "
                "__getitem__, or be an IterableDataset"
            )
        try:
            size = len(dataset)
        except (TypeError, NotImplementedError):
            return f"{split} of {name} has no length: its class needs __len__ in addition to __getitem__"
        if size == 0:
            return f"{split} of {name} is empty"
    return None


def build_duration(config: dict[str, Any], data: Data) -> Duration:
    """Compute the length of the run. An old config.yaml may not contain the key max_steps.

    Raises:
        BuildError: The settings do not define a length.
    """
    per_step = config["world_size"] * config["batch_size"]
    try:
        return Duration.from_settings(
            length_of(data.train), per_step, config["epochs"], config.get("max_steps")
        )
    except ValueError as error:
        raise BuildError(str(error)) from None


def build_early_stopping(config: dict[str, Any], task: Task, duration: Duration) -> EarlyStopping:
    """Make the early-stopping rule. An old config.yaml may not contain the key give_up_after.

    Raises:
        BuildError: The rule needs the range of the loss, which the task does not define.
    """
    share = config.get("give_up_after")
    if share is not None and task.loss_range() is None:
        raise BuildError(
            f"give_up_after={share}: {type(task).__name__} does not define the loss of a guess. Type give_up_after=null"
        )
    return EarlyStopping.from_share(share, duration)


def _index_streams(
    config: dict[str, Any], data: Data, partition: Partition, duration: Duration
) -> tuple[Data, Partition]:
    """Replace streams (IterableDatasets) by datasets with numbered samples.

    If the training set is a stream, the returned partition distributes its samples to the workers in order.
    """
    streams = {
        name: dataset for name in SPLITS if isinstance(dataset := getattr(data, name), IterableDataset)
    }
    data = copy.copy(data) if streams else data
    with naming("data"):
        if "test" in streams:
            length = length_of(streams["test"])
            samples = sum(1 for _ in streams["test"]) if length is None else length
            if samples == 0:
                raise DataError(f"test of {type(data).__name__} is empty")
            data.test = Stream(streams["test"], samples)
    if "train" not in streams:
        return data, partition
    if not isinstance(partition, Iid):
        raise BuildError(
            "partition: the samples of a stream are distributed to workers in order. Type partition=iid"
        )
    samples = duration.steps_per_epoch * config["world_size"] * config["batch_size"]
    data.train = Stream(streams["train"], samples)
    return data, InOrder()


def build_task(config: dict[str, Any], data: Data) -> Task:
    """Make the task.

    Raises:
        BuildError: The task cannot be made, or does not support the label smoothing that the config sets.
    """
    spec, smoothing = config["task"], config["label_smoothing"]
    if "label_smoothing" in _parameters("task", spec):
        spec = {"label_smoothing": smoothing, **spec}
    elif smoothing:
        name = spec["_target_"].rsplit(".", 1)[-1]
        raise BuildError(
            f"label_smoothing={smoothing}: {name} does not smooth labels. Type label_smoothing=0"
        )
    return part("task", _add_data_facts("task", spec, data))


def build_model(config: dict[str, Any], data: Data) -> nn.Module:
    """Make the model. Arguments that the yaml does not set are taken from the dataset's description of itself.

    `num_classes` is also passed to functions that take any keyword argument, such as timm.create_model.
    """
    spec = _add_data_facts("model", config["model"], data)
    parameters = _parameters("model", spec).values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if takes_any and "num_classes" not in spec and states(data, "num_classes"):
        with contextlib.suppress(
            BuildError
        ):  # The function may pass its keyword arguments on to another one that does not accept num_classes.
            return _make_model(config, {**spec, "num_classes": getattr(data, "num_classes", None)})
    return _make_model(config, spec)


def _add_data_facts(section: str, spec: dict[str, Any], data: Data) -> dict[str, Any]:
    """Add facts of `data` to a section, if its class accepts them as arguments and the yaml does not set them."""
    missing = [name for name in _parameters(section, spec) if spec.get(name) is None]
    return spec | {name: getattr(data, name) for name in missing if states(data, name)}


def _parameters(section: str, spec: dict[str, Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the class that `spec` names."""
    with naming(section):
        return inspect.signature(locate(spec["_target_"])).parameters


def _make_model(config: dict[str, Any], spec: dict[str, Any]) -> nn.Module:
    torch.manual_seed(derived_seed("weights", config["seed"]))
    return part("model", spec)


def _check_model(model: nn.Module) -> None:
    """Raise BuildError if the model cannot be trained."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise BuildError(
                f"model: {name} has no shape before the first batch (a lazy layer), but initial weights must depend on "
                "the seed only. Pass the sizes to the layer"
            )
    if not trainable(model):
        raise BuildError(f"model: {type(model).__name__} has no parameters that require a gradient")


def load_initial_weights(config: dict[str, Any], model: nn.Module) -> None:
    """Load the initial weights from the file in init_from. An old config.yaml may not contain this key.

    Raises:
        BuildError: The file cannot be read or does not match the model.
    """
    if config.get("init_from") is not None:
        with naming("init_from"):
            _init_from(config).load_into(model)


def load_initial_optimizer(config: dict[str, Any], optimizer: Optimizer, learner: type) -> None:
    """Load the state of the optimizer from the file in init_from.

    Raises:
        BuildError: The file has no state that fits the optimizer, or each worker has an optimizer of its own.
    """
    if not learner.loads_optimizer:  # type: ignore[attr-defined]
        raise BuildError(
            "init_optimizer=true: with this sync, workers have optimizers of their own. Type sync=all_reduce, or "
            "init_optimizer=false"
        )
    with naming("init_from"):
        _init_from(config).load_into_optimizer(optimizer)


def _init_from(config: dict[str, Any]) -> InitFrom:
    path = Path(config["init_from"])
    return InitFrom(path, config["init_sha256"], config["init_into"], config["init_skip"])


def build_optimizer(config: dict[str, Any], model: nn.Module) -> Callable[[list[nn.Parameter]], Optimizer]:
    """Return a function that makes the run's optimizer for parameters that correspond to those of the model.

    Raises:
        BuildError: The optimizer or its parameter groups cannot be made.
    """
    make = part("optim", config["optim"], _partial_=True)
    with naming("parameter_groups"):
        settings_of = getattr(make.func, "settings_of", None)
        own_settings = None if settings_of is None else partial(settings_of, arguments=make.keywords)
        groups = ParameterGroups(model, parameter_groups(config), own_settings)

    def make_optimizer(parameters: list[nn.Parameter]) -> Optimizer:
        with naming("optim"):
            return groups.optimizer(make, parameters)

    return make_optimizer


def parameter_groups(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the setting parameter_groups. An old config.yaml may not contain this key."""
    return config.get("parameter_groups", [])


def build_sync(
    config: dict[str, Any], model: nn.Module, duration: Duration
) -> GradientSync | Gossip | OuterStep:
    """Make the gradient synchronization."""
    make = part("sync", config["sync"], _partial_=True)
    scaling = part("scaling", config["scaling"]) if config["aps"] else None
    with naming("sync"):
        return make(
            format=config["format"],
            scaling=scaling,
            world_size=config["world_size"],
            seed=config["seed"],
            epochs=duration.epochs,
            parameter_names=list(trainable(model)),
            full_precision=config["full_precision"],
        )
