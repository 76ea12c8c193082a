"""Find and read the yaml files of configurations.

Command-line completion, which uses this module, must be fast. Therefore, the module does not import Hydra, and imports
yaml only when it reads a file.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.config.class_names import PRESENT_NAME

if TYPE_CHECKING:
    from custom_fp.formats.protocol import NumberFormat

CONF_MODULE = "cpdrun.conf"
# The package that contains further files of the group `recipe`.
RECIPES_MODULE = "custom_fp.conf"
# The entry points by which installed distributions name their packages of yaml files.
ENTRY_POINTS = ("cpdrun.experiments", "cpdrun.recipes", "cpdrun.launchers")
# The top-level file for cpdrun's own training loop, and the one for scripts.
ROOT, SCRIPT_ROOT = "config", "script"
EXPERIMENT = "exp"

# The limits of a yaml file. For comparison, a run's configuration has about a hundred keys in four levels.
MOST_BYTES = 1 << 20
MOST_VALUES = 20_000  # repeated aliases count each time
MOST_DEPTH = 40
_MANY_BRACKETS = 200  # if a file has fewer brackets and dashes, its depth is checked only after parsing

# The sections from which readers of a record build objects.
READ_SECTIONS = ("format", "precision", "scaling", "sync")
_TARGET = "_target_"
_PATTERNS = "modules"  # in a rule, these are names of a model's layers, which look like names of modules
_CONF_TARGET = re.compile(r"^_target_:\s*([\w.]+)", re.MULTILINE)

# Keys whose values are choices of a group, not formats.
_NOT_FORMATS = {"defaults", "recipe", "precision", "name"}


class OutOfBoundsError(ValueError):
    """A yaml file is too large or too deep for a configuration, or it contains itself."""


def yaml_packages() -> list[str]:
    """Return the names of all packages of yaml files.

    If several packages have a file with the same name, the file of the first package is used. This function reads a
    file of each installed distribution.
    """
    every = entry_points()
    named = [entry.value for group in ENTRY_POINTS for entry in every.select(group=group)]
    return list(dict.fromkeys([CONF_MODULE, RECIPES_MODULE, *named]))


def read_yaml(path: Path, times: int = 1) -> Any:
    """Return the content of a yaml file that may come from an untrusted source.

    A few lines of yaml can expand to a billion values (aliases of aliases) or to an endless structure (an alias inside
    its own anchor), and nested brackets can overflow the parser's stack. Such files are rejected.

    Args:
        path: The file.
        times: A factor by which the limits for a configuration are multiplied.

    Raises:
        ValueError: The file is not valid yaml or exceeds the limits. The message is one line.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return parse_yaml(file.read(times * MOST_BYTES + 1), times)


def parse_yaml(text: bytes, times: int = 1) -> Any:
    """Return the content of a yaml text, with the limits and errors of `read_yaml`."""
    import yaml

    if len(text) > times * MOST_BYTES:
        raise OutOfBoundsError(f"is larger than {times * MOST_BYTES >> 20} MiB")
    try:
        if text.count(b"[") + text.count(b"{") + text.count(b"- ") + text.count(b"? ") >= _MANY_BRACKETS:
            _check_depth(text)
        value = yaml.load(text, _loader())
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    except RecursionError:
        raise OutOfBoundsError("is nested too deep") from None
    _check_values(value, times * MOST_VALUES)
    return value


def _loader() -> Any:
    """Return libyaml's loader if it is available. It is ten times as fast."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _check_depth(text: bytes) -> None:
    """Check the depth by the parser's events, which need no recursion."""
    import yaml

    depth = 0
    for event in yaml.parse(text, _loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_DEPTH:
            raise OutOfBoundsError("is nested too deep")


def _check_values(whole: Any, most: int) -> None:
    waiting: list[tuple[Any, int]] = [(whole, 1)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > MOST_DEPTH:
            raise OutOfBoundsError("is nested too deep, or contains itself")
        if seen > most:
            raise OutOfBoundsError(f"contains more than {most} values, counting aliases")
        if isinstance(value, dict | list | tuple | set):
            within = value.values() if isinstance(value, dict) else value
            waiting.extend((item, depth + 1) for item in within)


def foreign_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names in READ_SECTIONS of `config` that cpdrun does not define itself.

    A record is data, so readers must not execute code that it names. They create the formats, the precision, the
    scaling and the sync of a record only from cpdrun's own classes and formats. The returned names are classes without
    a file in the corresponding conf/ group, formats from modules (`package.module.NAME`), and strings with an
    interpolation (`${...}`). Nothing is imported.
    """
    found = (name for key in READ_SECTIONS if key in config for name in _foreign(key, config[key], key))
    return list(dict.fromkeys(found))


def _foreign(section: str, value: Any, key: object) -> Iterator[str]:
    from custom_fp.formats.names import is_own

    if isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _foreign(section, item, inner)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _foreign(section, item, key)
    elif key == _TARGET:
        if PRESENT_NAME.get(value, value) not in registered_classes(section):
            yield str(value)
    elif isinstance(value, str) and ("${" in value or (key != _PATTERNS and is_own(value))):
        yield value


@cache
def registered_classes(group: str) -> frozenset[str]:
    """Return the classes that the files of conf/<group>/ name.

    For `sync`, this includes those of conf/compressor/ and conf/topology/, which a sync contains.
    """
    groups = {"sync": ("sync", "compressor", "topology")}.get(group, (group,))
    texts = (
        file.read_text(encoding="utf-8")
        for name in groups
        if (folder := files(CONF_MODULE) / name).is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    )
    return frozenset(target for text in texts for target in _CONF_TARGET.findall(text))


def files_that_name(fmt: "NumberFormat") -> list[str]:
    """Return the yaml files of conf/ and of custom_fp that name a format, sorted, such as `recipe/nvfp4`."""
    import yaml

    names = {fmt.name, *fmt.synonyms}
    found = []
    for path, file in chain(_yaml_files(files(CONF_MODULE), ""), _yaml_files(files(RECIPES_MODULE), "")):
        text = file.read_text(encoding="utf-8")
        if any(name in text for name in names) and names & set(_words(yaml.load(text, _loader()))):
            found.append(path)
    return sorted(found)


def _yaml_files(folder: Traversable, under: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _yaml_files(entry, f"{under}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield under + entry.name.removesuffix(".yaml"), entry


def _words(value: Any) -> Iterator[str]:
    """Yield every text value. A text with commas is split into its items."""
    if isinstance(value, str):
        yield from (word.strip() for word in value.split(","))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _NOT_FORMATS:
                yield from _words(item)
    elif isinstance(value, list):
        for item in value:
            yield from _words(item)
