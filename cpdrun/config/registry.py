"""The names in a configuration that somebody would have to import to build it, and those that cpdrun provides itself.

A record is data: whoever reads one builds parts of its configuration (its formats, its precision, its scaling) from
cpdrun's own classes and formats only. Everything else in a record is a name, and stays one.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from custom_fp.formats.names import is_own

from cpdrun.config.moved import NOW

READ_SECTIONS = ("format", "precision", "scaling", "sync")  # what readers of a record build from
_TARGET = "_target_"
_PATTERNS = "modules"  # of a rule: names of a model's layers, which look like names of modules
_CONF_TARGET = re.compile(r"^_target_:\s*([\w.]+)", re.MULTILINE)


def foreign_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names in READ_SECTIONS of `config` that cpdrun does not define itself.

    These are classes without a file in the matching conf/ group, formats from modules (`package.module.NAME`), and
    strings with an interpolation (`${...}`). Nothing is imported.
    """
    found = (name for key in READ_SECTIONS if key in config for name in _foreign(key, config[key], key))
    return list(dict.fromkeys(found))


def _foreign(section: str, value: Any, key: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _foreign(section, item, inner)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _foreign(section, item, key)
    elif key == _TARGET:
        if NOW.get(value, value) not in registered_classes(section):
            yield str(value)
    elif isinstance(value, str) and ("${" in value or (key != _PATTERNS and is_own(value))):
        yield value


@cache
def registered_classes(group: str) -> frozenset[str]:
    """Return the classes that the files of conf/<group>/ name, and those of conf/compressor/ and conf/topology/ for
    `sync`, which holds them."""
    groups = {"sync": ("sync", "compressor", "topology")}.get(group, (group,))
    texts = (
        file.read_text(encoding="utf-8")
        for name in groups
        if (folder := files("cpdrun.conf") / name).is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    )
    return frozenset(target for text in texts for target in _CONF_TARGET.findall(text))
