"""Dotted keys of configs, and overrides in Hydra's grammar: `key=value`, `key=a,b,c`, `+key=value`, `~key`.

In a config, the dotted key `optim.lr` stands for config["optim"]["lr"].
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.script import as_typed

# Hydra is imported in the functions that parse, because `cpdrun report` only needs `typed_form`.
if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override

# The section with the settings that a recipe leaves to the user.
INGREDIENTS = "ingredients"
RESULTS_DIR = "results_dir="
# The maximum number of values of an axis, and of runs of a sweep. Reading a longer range would take minutes.
MOST_VALUES = 100_000
# Values that Hydra's grammar reads as text without quotes.
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_/][A-Za-z0-9_./@%+~-]*", re.IGNORECASE)


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every leaf. An empty mapping is a leaf."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def copied(node: Any) -> Any:
    """Return a deep copy of nested dicts and lists. copy.deepcopy takes ten times as long."""
    if isinstance(node, dict):
        return {key: copied(value) for key, value in node.items()}
    return [copied(value) for value in node] if isinstance(node, list) else node


def has_key(config: Mapping[str, Any], key: str) -> bool:
    """Return whether a config contains a dotted key such as `optim.lr`."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def get_key(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key. Raise KeyError if the config does not have it."""
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def set_key(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, in place. Missing sections are created."""
    *path, last = key.split(".")
    for part in path:
        if not isinstance(config.get(part), dict):
            config[part] = {}
        config = config[part]
    config[last] = value


def delete_key(config: dict[str, Any], key: str) -> None:
    """Delete a dotted key, in place. Raise KeyError if the config does not have it."""
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    del config[last]


def results_dir_of(text: str) -> str:
    """Return the folder in `results_dir=PATH`, without quotes around it. The path may contain any characters."""
    value = text.removeprefix(RESULTS_DIR)
    is_quoted = len(value) > 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


@dataclass(frozen=True)
class Typed:
    """One override from the command line.

    Attributes:
        text: The override as typed.
        key: The key or group.
        values: The single value, or the values of an axis. Empty if the key is deleted.
        is_axis: Whether the override makes the key an axis.
        adds: Whether the override has a plus sign, so that the key need not exist.
        deletes: Whether the override deletes the key.
    """

    text: str
    key: str
    values: tuple[Any, ...]
    is_axis: bool
    adds: bool
    deletes: bool


def parse(texts: Sequence[str], config_loader: Any) -> list[Typed]:
    """Parse overrides.

    Args:
        texts: The overrides as typed.
        config_loader: Hydra's loader. It expands choices such as `group=glob(*)`.

    Raises:
        ConfigError: An override cannot be parsed.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create(config_loader)
    experiments = config_loader.get_group_options("exp")
    for text in texts:
        if not text.isprintable():
            raise ConfigError(f"cannot read {text!r}: it contains characters that a terminal cannot show")
        if text in experiments:
            raise ConfigError(f"cannot read {text!r}. To choose the experiment of this name, type exp={text}")
    return [_text(text) or _parse_one(parser, text) for text in texts]


def _text(text: str) -> Typed | None:
    """Parse an override whose value is plain text. For any other override, return None.

    Hydra's grammar must not interpret such a value. These are the values of results_dir and of some settings of a
    script: its path, arguments, launcher, files, and metrics.
    """
    is_folder = text.startswith(RESULTS_DIR)
    found = (RESULTS_DIR[:-1], results_dir_of(text)) if is_folder else as_typed(text)
    if found is None:
        return None
    key, value = found
    return Typed(text=text, key=key, values=(value,), is_axis=False, adds=False, deletes=False)


def _parse_one(parser: "OverridesParser", text: str) -> Typed:
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    # A shell does not replace the ~ in key=~/folder, and Hydra's grammar does not allow it.
    with_home = re.sub(r"(?<=[=,\[])~(?=/)", Path.home().as_posix(), text)
    try:
        (override,) = parser.parse_overrides([with_home])
        deletes = override.type == OverrideType.DEL
        values = () if deletes else _values(override)
    except (HydraException, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read {text!r}; write key=value or key=a,b,c") from error
    if override.package is not None or not override.key_or_group:
        raise ConfigError(f"cannot read {text!r}; write key=value or key=a,b,c")
    return Typed(
        text=text,
        key=override.key_or_group,
        values=values,
        is_axis=override.is_sweep_override(),
        adds=override.type in (OverrideType.ADD, OverrideType.FORCE_ADD),
        deletes=deletes,
    )


def _values(override: "Override") -> tuple[Any, ...]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if override.is_sweep_override():
        # Hydra returns the values of an axis as text, so each of them is parsed again as a single value.
        single = OverridesParser.create()
        elements = list(itertools.islice(override.sweep_string_iterator(), MOST_VALUES + 1))
        if len(elements) > MOST_VALUES:
            raise ConfigError(f"{override.input_line}: an axis has at most {MOST_VALUES:,} values")
        return tuple(_plain_number(text) or single.parse_override(f"x={text}").value() for text in elements)
    return (override.value(),)


def _plain_number(text: str) -> int | None:
    """Return the whole number that a text such as `12` represents, or None for any other text.

    Hydra's grammar returns the same number but takes about a hundred times as long.
    """
    return int(text) if text.isascii() and text.isdecimal() and text[0] != "0" else None


def typed_form(value: Any) -> str:
    """Return a value as it is typed after `key=`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(typed_form, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{typed_form(item)}' for key, item in value.items())}}}"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)
