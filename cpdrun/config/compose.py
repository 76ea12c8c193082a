"""Composing configs: Hydra composes the choices of groups, single values are set on plain dicts.

Hydra's compose takes 30 ms and knows no sub-commands and no multirun. So each combination of group choices
is composed once and copied for every run that has it; of our own conf/, which no process changes, once a process.
"""

import contextlib
import copy
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cpdrun.config.bounded_yaml import OutOfBoundsError, read_yaml
from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.keys import INGREDIENTS, copied, flatten, get_key, has_key
from cpdrun.config.overrides import typed_form
from cpdrun.config.yaml_packages import CONF_MODULE, EXPERIMENT, ROOT, SCRIPT_ROOT, yaml_packages

BASE = "any_run"  # the yaml file that both ROOT and SCRIPT_ROOT include
NO_GROUPS = ("hydra",)  # Hydra's own folder
NONE_CHOSEN = "None"  # null, as a choice of a group that may have none
RECIPE = "recipe"
MAY_BE_NONE = (RECIPE,)
MOST_LISTED = 12  # choices in a message about an unknown one
LIST = "list"  # typed as a choice, to list all
MOST_REFERENCES = 8  # from one to the next; more go round in a circle, which OmegaConf reports
REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}")


@cache
def installed() -> tuple[str, ...]:
    """Return the packages of yaml files other than conf/, whose folders are groups, as in conf/.

    Raises:
        ConfigError: A package that an entry point names cannot be imported.
    """
    found = tuple(package for package in yaml_packages() if package != CONF_MODULE)
    for package in found:
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"entry point {package}: {error}; reinstall or remove the package it is of"
            ) from None
    return found


@dataclass
class _Known:
    """What is known of some folders of yaml: read or composed, it stays as it is."""

    files: dict[str, Any] = field(default_factory=dict)  # as Hydra reads them
    bodies: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # by group and choice
    groups: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # by root
    usual: dict[tuple[str, str | None], dict[str, str]] = field(
        default_factory=dict
    )  # by root and experiment
    # by root and choices: the config, and what was left out of its experiment
    composed: dict[tuple[Any, ...], tuple[dict[str, Any], list[str]]] = field(default_factory=dict)


_OURS = _Known()


class Composer:
    """Access to conf/ and, in front of it, to a folder of the user's own: a yaml there is a further choice of
    its group, or stands for ours of the same name.

    Use as a context manager; it holds Hydra's global state while open. Raises ConfigError for a `config_dir`
    that is no folder of groups.
    """

    def __init__(self, config_dir: Path | None = None):
        if config_dir is not None and not config_dir.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is not a folder")
        for root in (ROOT, SCRIPT_ROOT, BASE):
            if config_dir is not None and (config_dir / f"{root}.yaml").exists():
                raise ConfigError(
                    f"--config-dir {config_dir}: {root}.yaml would hide every default of cpdrun's; put what differs "
                    f"in a file of your own, {config_dir / EXPERIMENT / 'NAME.yaml'}, and type {EXPERIMENT}=NAME"
                )
        self._user_dir = config_dir
        self.root = ROOT
        self._known = _OURS if config_dir is None else _Known()
        self._left_out: dict[str, None] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Composer":
        if self._user_dir is not None:
            _check_bounds(self._user_dir)
        self._open.enter_context(initialize_config_module(CONF_MODULE, version_base="1.3"))
        self.loader: Any = GlobalHydra.instance().config_loader()
        loader: Any = self.loader  # of which Hydra's types tell less than there is
        search_path = loader.get_search_path()
        if self._user_dir is not None:  # hydra.searchpath would put it behind ours
            search_path.prepend("user", f"file://{self._user_dir.resolve()}")
        for package in installed():
            search_path.append("installed", f"pkg://{package}", anchor="main")  # Hydra wants its own last
        loader.repository.initialize_sources(search_path)
        _read_each_file_once(loader.repository, self._known.files)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def use(self, root: str) -> None:
        """Compose what `root` says a run is, ROOT or SCRIPT_ROOT; to be called before anything is composed."""
        self.root = root

    def groups(self) -> dict[str, list[str]]:
        """Every group with its choices, the user's own included; of a script's run those that it has."""
        if self.root not in self._known.groups:
            found = {name: set(self.loader.get_group_options(name)) for name in self.loader.list_groups("")}
            names = [name for name in sorted(found) if name not in NO_GROUPS]
            if self.root != ROOT:
                usual = self.loader.compute_defaults_list(self.root, [], RunMode.RUN).overrides.known_choices
                names = [name for name in names if name in usual or name == EXPERIMENT]
            self._known.groups[self.root] = {name: sorted(found[name]) for name in names}
        return self._known.groups[self.root]

    def compose(self, choices: Mapping[str, str]) -> dict[str, Any]:
        """The defaults under these group choices, as plain data with interpolations unresolved; a fresh copy.

        What an experiment's file sets for its own choice of a group, such as `partition: {skew: 0.5}`, is left out
        where another is chosen that does not know it. Raises ConfigError for an unknown choice or a yaml that cannot
        be read.
        """
        return copied(self._cached(choices))

    @property
    def is_ours(self) -> bool:
        """Whether there is no folder of the user's own."""
        return self._user_dir is None

    def kind(self, group: str, choices: Mapping[str, str]) -> Any:
        """The class that `compose` gives a group; None where a yaml makes something else of it."""
        section = self._cached(choices).get(group)
        return section.get("_target_") if isinstance(section, Mapping) else None

    def file(self, group: str, choice: str) -> dict[str, Any]:
        """What the yaml of a choice says by itself, which costs no composition; a fresh copy."""
        bodies = self._known.bodies
        if (group, choice) not in bodies:
            found = self.loader.repository.load_config(f"{group}/{choice}").config
            bodies[group, choice] = _plain(found)
        return copied(bodies[group, choice])

    def body(self, experiment: str) -> dict[str, Any]:
        """What an experiment's yaml says by itself; empty where it cannot be read, which `compose` tells."""
        try:
            body = self.file(EXPERIMENT, experiment)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError):
            return {}
        return body if isinstance(body, dict) else {}

    def _cached(self, choices: Mapping[str, str]) -> dict[str, Any]:
        key = (self.root, *sorted(choices.items()))
        if key not in self._known.composed:
            _check_choices(choices, self.groups(), self._user_dir)
            config = self._compose(choices)
            without = self._leave_out(config, choices) if EXPERIMENT in choices else []
            self._known.composed[key] = config, without
        config, without = self._known.composed[key]
        self._left_out |= dict.fromkeys(without)
        return config

    def left_out(self) -> list[str]:
        """Return the settings of experiments that have been left out so far, each with its reason."""
        return list(self._left_out)

    def set_by(self, experiment: str) -> list[str]:
        """Return the groups and keys that the experiment's file sets to something other than the default."""
        own, usual = self._choices_of(experiment), self._choices_of(None)
        without = dict(flatten(self.compose({group: own[group] for group in self.groups() if group in own})))
        body = dict(flatten(self.compose({EXPERIMENT: experiment})))
        chosen = [group for group in usual if own.get(group) != usual[group]]
        return chosen + [key for key, value in body.items() if key not in without or without[key] != value]

    def _leave_out(self, config: dict[str, Any], choices: Mapping[str, str]) -> list[str]:
        """Remove inapplicable settings from `config` and return them, each with its reason."""
        left_out = []
        axes = _axes_in(config.get("sweep"))
        for group, choice in choices.items():
            section = config.get(group)
            if group == EXPERIMENT or not isinstance(section, dict):
                continue
            if section.keys() <= self.file(group, choice).keys():
                continue
            its_own = self.compose({group: choice})[group] or {}  # with what its yaml takes from others
            unknown = [key for key in section if key not in its_own]
            if not unknown:
                continue
            own = self._choices_of(choices[EXPERIMENT]).get(group)
            if choice == own and (group not in axes or its_own.get("_target_") == "???"):
                continue
            for key in unknown:
                said = f"{group}.{key}={typed_form(section.pop(key))}"
                left_out.append(
                    f"the experiment's {said} is left out with {group}={choice}, which has no such key"
                )
        return left_out

    def choice(self, group: str, choices: Mapping[str, str]) -> str | None:
        """Return the choice of a group, as typed or else as the experiment sets it; None if there is none."""
        chosen = choices.get(group) or self._choices_of(choices.get(EXPERIMENT)).get(group)
        return None if chosen == NONE_CHOSEN else chosen

    def _choices_of(self, experiment: str | None) -> dict[str, str]:
        """Return the choice of each group if only the experiment, already composed, is typed."""
        key = self.root, experiment
        if key not in self._known.usual:
            typed = [] if experiment is None else [f"{EXPERIMENT}@_global_={experiment}"]
            found = self.loader.compute_defaults_list(self.root, typed, RunMode.RUN).overrides.known_choices
            self._known.usual[key] = {g: found[g] for g in self.groups() if found.get(g) is not None}
        return self._known.usual[key]

    def _compose(self, choices: Mapping[str, str]) -> dict[str, Any]:
        overrides = [
            f"{EXPERIMENT}@_global_={choice}" if group == EXPERIMENT else _override(group, choice)
            for group, choice in choices.items()
        ]
        try:
            config = compose(self.root, overrides=overrides)
        except yaml.MarkedYAMLError as error:
            mark = error.context_mark or error.problem_mark
            where = f"{mark.name}, line {mark.line + 1}" if mark else "a yaml file"
            raise ConfigError(f"{where}: {error.problem or error.context}") from None
        except AttributeError:  # Hydra reads its own settings, which `hydra: null` removes
            raise ConfigError("hydra: these are Hydra's own settings; leave them out of your yaml") from None
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{_not_utf8(self._user_dir)} is not UTF-8: {error.reason}; save it so"
            ) from None
        except (
            HydraException,
            OmegaConfBaseException,
            yaml.YAMLError,
            ValueError,
            OSError,
            RecursionError,
        ) as error:
            silent = "a value holds ${ and is no interpolation: write ${key}"  # OmegaConf has no words for it
            raise ConfigError(" ".join(str(error).split()) or silent) from None
        return _laid_out(_plain(config))


def _plain(config: Any, *, resolve: bool = False) -> Any:
    return OmegaConf.to_container(config, resolve=resolve)


def _laid_out(config: dict[str, Any]) -> dict[str, Any]:
    """With every group, and the ingredients of a recipe as a section of their own, which its rules refer to; what an
    experiment says of them goes before."""
    config = dict.fromkeys(MAY_BE_NONE) | config
    recipe, ingredients = config[RECIPE], config.get(INGREDIENTS) or {}
    if not isinstance(ingredients, dict):
        raise ConfigError(f"{INGREDIENTS}={ingredients}: must map names to values, such as {{format: nvfp4}}")
    if isinstance(recipe, dict) and isinstance(own := recipe.get(INGREDIENTS), dict):
        del recipe[INGREDIENTS]
        config[INGREDIENTS] = own | ingredients
    return config


def _check_choices(
    choices: Mapping[str, str], groups: Mapping[str, list[str]], user_dir: Path | None
) -> None:
    for group, choice in choices.items():
        if choice == NONE_CHOSEN and group in MAY_BE_NONE:
            continue
        if choice not in groups[group]:
            kind = "experiment" if group == EXPERIMENT else f"choice of {group}"
            here = Path("conf", group, f"{choice}.yaml")  # as `cpdrun init` lays a project out
            if user_dir is None and here.is_file():
                raise ConfigError(f"unknown {kind} {str(choice)!r}: {here} is read with --config-dir conf")
            if choice == LIST:
                raise ConfigError(f"the choices of {group} are: {', '.join(groups[group])}")
            raise ConfigError(f"unknown {kind} {str(choice)!r}{_near(str(choice), group, groups[group])}")


def _near(choice: str, group: str, known: list[str]) -> str:
    """Return the end of the message about an unknown choice: similar choices, or all if there are few."""
    if near := did_you_mean(choice, known):
        return near
    if len(known) <= MOST_LISTED:
        return f"; there are: {', '.join(known)}"
    similar = difflib.get_close_matches(choice, known, n=3, cutoff=0.4) or known[:3]
    return f"; there are {len(known)}, such as {', '.join(similar)}. {group}={LIST} lists all"


def _override(group: str, choice: str) -> str:
    return f"~{group}" if choice == NONE_CHOSEN else f"{group}={choice}"


def _read_each_file_once(repository: Any, found: dict[str, Any]) -> None:
    """Hydra reads all yaml again for each composition, a third of its time; here from `found` once it is there."""
    load = repository.load_config

    def load_config(config_path: str) -> Any:
        if config_path not in found:
            try:
                found[config_path] = load(config_path)
            except AssertionError:  # Hydra's own check of a key such as 1
                raise ValueError(
                    f"{config_path}: the keys of its defaults list must be names of groups"
                ) from None
        return copy.deepcopy(found[config_path])

    repository.load_config = load_config


def _axes_in(block: Any) -> set[str]:
    """Keys that an experiment's `sweep:` gives several values, its cases' included; whatever else it may hold is
    looked at by whoever plans it."""
    if not isinstance(block, Mapping):
        return set()
    cases = block.get("cases")
    cases = cases.values() if isinstance(cases, Mapping) else ()
    return {*block, *(key for case in cases if isinstance(case, Mapping) for key in case)}


def _check_bounds(folder: Path) -> None:
    """Hydra reads whatever a yaml stands for. Raises ConfigError for a file of `folder` that stands for too much."""
    for path in sorted(folder.rglob("*.yaml")):
        try:
            read_yaml(path)
        except OutOfBoundsError as error:
            raise ConfigError(f"{path} {error}") from None
        except (OSError, ValueError):  # told where it is used
            continue


def _not_utf8(folder: Path | None) -> str:
    """The first file of `folder` that is not UTF-8."""
    for path in sorted(folder.rglob("*.yaml")) if folder is not None else ():
        try:
            path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return str(path)
    return "a yaml file"


def resolve(config: dict[str, Any]) -> dict[str, Any]:
    """Interpolations (${...}) replaced by their values; raises ConfigError where one points nowhere."""
    try:
        return _resolved(config, config)
    except _Demanding:  # OmegaConf can all of it, and takes 10 ms a run
        pass
    try:
        return _plain(OmegaConf.create(config), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None


class _Demanding(Exception):
    """An interpolation that is more than the name of another value."""


def _resolved(node: Any, config: dict[str, Any], depth: int = 0) -> Any:
    """A copy of `node` with each ${dotted.key} replaced by that value of `config`; _Demanding for anything else."""
    if isinstance(node, dict):
        return {key: _resolved(value, config, depth) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolved(value, config, depth) for value in node]
    if not isinstance(node, str) or "${" not in node:
        return node
    reference = REFERENCE.fullmatch(node)
    if reference is None or not has_key(config, reference[1]) or depth > MOST_REFERENCES:
        raise _Demanding
    return _resolved(get_key(config, reference[1]), config, depth + 1)
