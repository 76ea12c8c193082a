"""Compose configs from conf/ with Hydra, and resolve their interpolations.

Hydra composes the choices of groups. Because a composition takes 30 ms, single values are then set on plain dicts. Each
combination of choices is composed once and copied for every run with these choices.
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

from cpdrun.config.errors import ConfigError, did_you_mean
from cpdrun.config.overrides import INGREDIENTS, copied, flatten, get_key, has_key, typed_form
from cpdrun.config.yaml_files import (
    CONF_MODULE,
    EXPERIMENT,
    ROOT,
    SCRIPT_ROOT,
    OutOfBoundsError,
    read_yaml,
    yaml_packages,
)

BASE = "any_run"  # the yaml file that both ROOT and SCRIPT_ROOT include
NO_GROUPS = ("hydra",)  # folders with Hydra's own settings
NONE_CHOSEN = "None"  # the choice null, for groups that allow it
RECIPE = "recipe"
MAY_BE_NONE = (RECIPE,)
MOST_LISTED = 12  # the largest number of choices that a message about an unknown choice lists
LIST = "list"  # GROUP=list lists the choices of a group
MOST_REFERENCES = 8  # a longer chain of references is a cycle, which OmegaConf reports
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
                f"the package {package} of an entry point cannot be imported: {error}. Reinstall or remove the "
                "distribution that it belongs to"
            ) from None
    return found


@dataclass
class _Cache:
    """A cache of the files that were read, and of the configs that were composed, from some folders of yaml files.

    Attributes:
        files: The files as Hydra reads them, keyed by path.
        bodies: The contents of the file of a choice, keyed by group and choice.
        groups: The choices of each group, keyed by root.
        usual: The choice of each group, keyed by root and experiment.
        composed: The config and the settings that were left out of its experiment, keyed by root and choices.
    """

    files: dict[str, Any] = field(default_factory=dict)
    bodies: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    usual: dict[tuple[str, str | None], dict[str, str]] = field(default_factory=dict)
    composed: dict[tuple[Any, ...], tuple[dict[str, Any], list[str]]] = field(default_factory=dict)


_CONF_CACHE = _Cache()


class Composer:
    """Composes configs from conf/ and from a folder of the user's own.

    A yaml file in the user's folder is another choice of its group, or replaces the file of the same name in conf/. Use
    the composer as a context manager, because it uses Hydra's global state while it is open.

    Args:
        config_dir: The user's folder, if any.

    Raises:
        ConfigError: The folder does not exist, or it has a file that would replace all defaults.
    """

    def __init__(self, config_dir: Path | None = None):
        if config_dir is not None and not config_dir.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is not a folder")
        for root in (ROOT, SCRIPT_ROOT, BASE):
            if config_dir is not None and (config_dir / f"{root}.yaml").exists():
                raise ConfigError(
                    f"--config-dir {config_dir}: {root}.yaml would replace all defaults of cpdrun. Put your settings "
                    f"into {config_dir / EXPERIMENT / 'NAME.yaml'} instead, and type {EXPERIMENT}=NAME"
                )
        self._user_dir = config_dir
        self.root = ROOT
        self._cache = _CONF_CACHE if config_dir is None else _Cache()
        self._left_out: dict[str, None] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Composer":
        if self._user_dir is not None:
            _check_bounds(self._user_dir)
        self._open.enter_context(initialize_config_module(CONF_MODULE, version_base="1.3"))
        self.loader: Any = GlobalHydra.instance().config_loader()
        loader: Any = self.loader  # Any, because Hydra's annotations are incomplete
        search_path = loader.get_search_path()
        if self._user_dir is not None:  # hydra.searchpath would append it
            search_path.prepend("user", f"file://{self._user_dir.resolve()}")
        for package in installed():
            search_path.append(
                "installed", f"pkg://{package}", anchor="main"
            )  # inserted before Hydra's own path, which must be last
        loader.repository.initialize_sources(search_path)
        _read_each_file_once(loader.repository, self._cache.files)
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def use(self, root: str) -> None:
        """Select the top-level file, ROOT or SCRIPT_ROOT. Call this before anything is composed."""
        self.root = root

    def groups(self) -> dict[str, list[str]]:
        """Return the choices of each group, including the user's own. There are fewer groups for runs of scripts."""
        if self.root not in self._cache.groups:
            found = {name: set(self.loader.get_group_options(name)) for name in self.loader.list_groups("")}
            names = [name for name in sorted(found) if name not in NO_GROUPS]
            if self.root != ROOT:
                usual = self.loader.compute_defaults_list(self.root, [], RunMode.RUN).overrides.known_choices
                names = [name for name in names if name in usual or name == EXPERIMENT]
            self._cache.groups[self.root] = {name: sorted(found[name]) for name in names}
        return self._cache.groups[self.root]

    def compose(self, choices: Mapping[str, str]) -> dict[str, Any]:
        """Return a new config with the given choices of groups. Its interpolations are not resolved.

        An experiment may set keys of the choice that it makes for a group, such as `partition: {skew: 0.5}`. If another
        choice of the group is given and has no such keys, these settings are left out.

        Raises:
            ConfigError: A choice is unknown, or a yaml file cannot be read.
        """
        return copied(self._composed(choices))

    @property
    def is_ours(self) -> bool:
        """Whether only the files in conf/ are used, without a user's folder and without installed packages."""
        return self._user_dir is None

    def kind(self, group: str, choices: Mapping[str, str]) -> Any:
        """Return the class of a group in the composed config, or None if the group is not a section."""
        section = self._composed(choices).get(group)
        return section.get("_target_") if isinstance(section, Mapping) else None

    def file(self, group: str, choice: str) -> dict[str, Any]:
        """Return a copy of the content of the yaml file of a choice, without composing it."""
        bodies = self._cache.bodies
        if (group, choice) not in bodies:
            found = self.loader.repository.load_config(f"{group}/{choice}").config
            bodies[group, choice] = _plain(found)
        return copied(bodies[group, choice])

    def body(self, experiment: str) -> dict[str, Any]:
        """Return the content of an experiment's yaml file, or {} if the file cannot be read (`compose` reports it)."""
        try:
            body = self.file(EXPERIMENT, experiment)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, OSError, RecursionError):
            return {}
        return body if isinstance(body, dict) else {}

    def _composed(self, choices: Mapping[str, str]) -> dict[str, Any]:
        """Return the config for some choices from the cache. Callers must not change it."""
        key = (self.root, *sorted(choices.items()))
        if key not in self._cache.composed:
            _check_choices(choices, self.groups(), self._user_dir)
            config = self._compose(choices)
            without = self._leave_out(config, choices) if EXPERIMENT in choices else []
            self._cache.composed[key] = config, without
        config, without = self._cache.composed[key]
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
            its_own = self.compose({group: choice})[group] or {}  # includes the settings of its defaults list
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
        """Return the choice of a group: the typed one, or else that of the experiment. None if there is no choice."""
        chosen = choices.get(group) or self._choices_of(choices.get(EXPERIMENT)).get(group)
        return None if chosen == NONE_CHOSEN else chosen

    def _choices_of(self, experiment: str | None) -> dict[str, str]:
        """Return the choice of each group if only the experiment is typed."""
        key = self.root, experiment
        if key not in self._cache.usual:
            typed = [] if experiment is None else [f"{EXPERIMENT}@_global_={experiment}"]
            found = self.loader.compute_defaults_list(self.root, typed, RunMode.RUN).overrides.known_choices
            self._cache.usual[key] = {g: found[g] for g in self.groups() if found.get(g) is not None}
        return self._cache.usual[key]

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
        except AttributeError as error:  # `hydra: null` removes settings that Hydra reads
            if error.name != "_set_flag":
                raise
            raise ConfigError(
                "hydra: this section contains Hydra's own settings. Remove it from your yaml file"
            ) from None
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{_not_utf8(self._user_dir)} is not encoded in UTF-8 ({error.reason}). Save the file in UTF-8"
            ) from None
        except (
            HydraException,
            OmegaConfBaseException,
            yaml.YAMLError,
            ValueError,
            OSError,
            RecursionError,
        ) as error:
            # OmegaConf's own exception has no message in this case.
            silent = "a value contains ${, but is no valid interpolation. Write interpolations as ${key}"
            raise ConfigError(" ".join(str(error).split()) or silent) from None
        return _laid_out(_plain(config))


def _plain(config: Any, *, resolve: bool = False) -> Any:
    return OmegaConf.to_container(config, resolve=resolve)


OPERATIONS = "operations"  # a key of precision that recipes may omit


def _laid_out(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with a key for every group, and with the section `ingredients`.

    This section contains the ingredients of the recipe, to which the recipe's rules refer. The ingredients of an
    experiment override those of the recipe. If a recipe has rules but no key `operations`, the key is added with the
    value None, so that users can override it.
    """
    config = dict.fromkeys(MAY_BE_NONE) | config
    recipe, ingredients = config[RECIPE], config.get(INGREDIENTS) or {}
    if not isinstance(ingredients, dict):
        raise ConfigError(
            f"{INGREDIENTS}={ingredients}: must be a mapping of names to values, such as {{format: nvfp4}}"
        )
    if isinstance(recipe, dict) and isinstance(own := recipe.get(INGREDIENTS), dict):
        del recipe[INGREDIENTS]
        config[INGREDIENTS] = own | ingredients
    if isinstance(recipe, dict) and "rules" in recipe:
        recipe.setdefault(OPERATIONS, None)
    return config


def _check_choices(
    choices: Mapping[str, str], groups: Mapping[str, list[str]], user_dir: Path | None
) -> None:
    for group, choice in choices.items():
        if choice == NONE_CHOSEN and group in MAY_BE_NONE:
            continue
        if choice not in groups[group]:
            kind = "experiment" if group == EXPERIMENT else f"choice of {group}"
            here = Path("conf", group, f"{choice}.yaml")  # the layout of `cpdrun init`
            if user_dir is None and here.is_file():
                raise ConfigError(
                    f"unknown {kind} {str(choice)!r}: {here} is only read with --config-dir conf"
                )
            if choice == LIST:
                raise ConfigError(f"the choices of {group} are: {', '.join(groups[group])}")
            raise ConfigError(f"unknown {kind} {str(choice)!r}{_near(str(choice), group, groups[group])}")


def _near(choice: str, group: str, known: list[str]) -> str:
    """Return the end of the message about an unknown choice, which lists similar choices, or all if there are few."""
    if near := did_you_mean(choice, known):
        return near
    if len(known) <= MOST_LISTED:
        return f"; there are: {', '.join(known)}"
    similar = difflib.get_close_matches(choice, known, n=3, cutoff=0.4) or known[:3]
    return f"; there are {len(known)}, such as {', '.join(similar)}. {group}={LIST} lists all"


def _override(group: str, choice: str) -> str:
    return f"~{group}" if choice == NONE_CHOSEN else f"{group}={choice}"


def _read_each_file_once(repository: Any, found: dict[str, Any]) -> None:
    """Make Hydra read each file only once, and store its content in the dict `found`.

    Otherwise, reading files takes a third of Hydra's time.
    """
    load = repository.load_config

    def load_config(config_path: str) -> Any:
        if config_path not in found:
            try:
                found[config_path] = load(config_path)
            except AssertionError:  # Hydra raises this for a key such as the number 1
                raise ValueError(
                    f"{config_path}: the keys of its defaults list must be names of groups"
                ) from None
        return copy.deepcopy(found[config_path])

    repository.load_config = load_config


def _axes_in(block: Any) -> set[str]:
    """Return the keys of the axes and cases in an experiment's section `sweep`. `request.read` checks the section."""
    if not isinstance(block, Mapping):
        return set()
    cases = block.get("cases")
    cases = cases.values() if isinstance(cases, Mapping) else ()
    return {*block, *(key for case in cases if isinstance(case, Mapping) for key in case)}


def _check_bounds(folder: Path) -> None:
    """Raise ConfigError if a yaml file in the folder is too large. Hydra reads yaml without limits."""
    for path in sorted(folder.rglob("*.yaml")):
        try:
            read_yaml(path)
        except OutOfBoundsError as error:
            raise ConfigError(f"{path} {error}") from None
        except (OSError, ValueError):
            continue  # `compose` reports the error if the file is used.


def _not_utf8(folder: Path | None) -> str:
    """Return the first file of the folder that is not UTF-8."""
    for path in sorted(folder.rglob("*.yaml")) if folder is not None else ():
        try:
            path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return str(path)
    return "a yaml file"


def resolve(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the config with its interpolations (${...}) replaced by their values.

    Raises:
        ConfigError: An interpolation refers to a key that does not exist, or to itself.
    """
    try:
        return _resolved(config, config)
    except _ComplexInterpolationError:  # Use OmegaConf, which resolves all interpolations but is slower.
        pass
    try:
        return _plain(OmegaConf.create(config), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None


class _ComplexInterpolationError(Exception):
    """Raised for an interpolation that is not just the name of a key."""


def _resolved(node: Any, config: dict[str, Any], depth: int = 0) -> Any:
    """Return a copy of `node` with each ${dotted.key} replaced by the value of the key in `config`.

    Raises:
        _ComplexInterpolationError: There is another interpolation.
    """
    if isinstance(node, dict):
        return {key: _resolved(value, config, depth) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolved(value, config, depth) for value in node]
    if not isinstance(node, str) or "${" not in node:
        return node
    reference = REFERENCE.fullmatch(node)
    if reference is None or not has_key(config, reference[1]) or depth > MOST_REFERENCES:
        raise _ComplexInterpolationError
    return _resolved(get_key(config, reference[1]), config, depth + 1)
