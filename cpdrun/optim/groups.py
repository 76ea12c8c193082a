"""Parameter groups, which give some parameters other settings of the optimizer, such as no weight decay.

A group of the key `parameter_groups` selects its parameters by glob patterns and lists the settings that differ:

    parameter_groups:
      - {parameters: ['*.bias'], modules: ['*Norm*'], weight_decay: 0.0}

`parameters` are patterns for the names of parameters (layer1.0.bn1.weight). `modules` are patterns for the class of the
module that contains the parameter (BatchNorm2d, LayerNorm), because the names of parameters often do not say that they
belong to a norm. A parameter belongs to the first group with a matching pattern of either kind. Parameters in no group
keep the settings of the optimizer.

An optimizer can choose settings by the kind of a parameter. Its class then has a method `settings_of(name, module,
parameter, arguments)`, which returns the settings of a parameter, given the arguments of the optimizer. The settings of
a group take precedence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

CHOOSING = ("parameters", "modules")

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
OwnSettings = Callable[[str, nn.Module, nn.Parameter], Mapping[str, Any]]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name and in the order of the model."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


class ParameterGroups:
    """The groups of a model's trainable parameters.

    Args:
        model: The model.
        groups: For each group, a mapping with patterns under `parameters` and `modules`, and with settings.
        own: Returns the settings that the optimizer chooses for a parameter, from its name, the module that contains it
            and the parameter. With None, the optimizer chooses none.

    Raises:
        ValueError: A pattern matches no parameter.
    """

    def __init__(
        self, model: nn.Module, groups: Sequence[Mapping[str, Any]], own: OwnSettings | None = None
    ) -> None:
        self.settings = [{k: v for k, v in group.items() if k not in CHOOSING} for group in groups]
        names = list(trainable(model))
        holders = _holders(model)
        matched: set[tuple[str, str]] = set()
        self.group_of: list[int | None] = []  # the group of each parameter, or None
        for name in names:
            mine = [i for i, group in enumerate(groups) if _matches(group, name, holders[name], matched)]
            self.group_of.append(mine[0] if mine else None)
        for group in groups:
            for kind, pattern in _patterns(group):
                if (kind, pattern) not in matched:
                    raise ValueError(_unmatched(kind, pattern, names, holders))
        self.own: list[Mapping[str, Any]] = [
            {} if own is None else own(name, model.get_submodule(name.rpartition(".")[0]), parameter)
            for name, parameter in trainable(model).items()
        ]

    def optimizer(self, make: MakeOptimizer, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer of the given parameters.

        The first group of the optimizer contains the parameters in no group, if there are any.

        Args:
            make: Makes the optimizer from parameters or parameter groups, as the optimizers of torch.optim accept them.
            parameters: The trainable parameters, in the order of the model.

        Raises:
            ValueError: A group has a setting that the optimizer does not have, or a setting that is not a number from
                0.
        """
        if not self.settings and not any(self.own):
            return make(list(parameters))
        taken = []
        for group in (None, *range(len(self.settings))):
            of_group = {} if group is None else self.settings[group]
            mine = [
                (p, {**own, **of_group})
                for p, its_group, own in zip(parameters, self.group_of, self.own, strict=True)
                if its_group == group
            ]
            kinds = [
                settings for i, (_, settings) in enumerate(mine) if settings not in [s for _, s in mine[:i]]
            ]
            taken += [{"params": [p for p, settings in mine if settings == kind], **kind} for kind in kinds]
        optimizer = make(taken)
        for settings in self.settings:
            _check(settings, optimizer)
        return optimizer


def _check(settings: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer).__name__
    for key, value in settings.items():
        if key not in optimizer.defaults:
            known = ", ".join(sorted(optimizer.defaults))
            raise ValueError(f"parameter_groups: {kind} has no setting {key!r}; it has {known}")
        if _is_number(optimizer.defaults[key]) and not (_is_number(value) and value >= 0):
            raise ValueError(f"parameter_groups: {key}={value} must be a number, at least 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _holders(model: nn.Module) -> dict[str, str]:
    """Return the class name of the module that contains each parameter, by the name of the parameter."""
    return {
        f"{prefix}.{name}" if prefix else name: type(module).__name__
        for prefix, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }


def _patterns(group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in CHOOSING:
        for pattern in group.get(kind, ()):
            yield kind, pattern


def _matches(group: Mapping[str, Any], name: str, holder: str, matched: set[tuple[str, str]]) -> bool:
    """Return whether the group contains this parameter, and add the patterns that match to `matched`."""
    found = {
        (kind, pattern)
        for kind, pattern in _patterns(group)
        if fnmatchcase(name if kind == "parameters" else holder, pattern)
    }
    matched |= found
    return bool(found)


def _unmatched(kind: str, pattern: str, names: list[str], holders: Mapping[str, str]) -> str:
    if kind == "parameters":
        return f"{pattern!r} matches no parameter; the first ones are {', '.join(names[:4])}"
    classes = ", ".join(sorted(set(holders.values())))
    return f"{pattern!r} matches no module with parameters; there are {classes}"
