"""Find the experiments, recipes, and other yaml files that name a number format."""

from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from typing import Any

import yaml
from custom_fp.formats.protocol import NumberFormat

from cpdrun.config.yaml_packages import CONF_MODULE, RECIPES_MODULE

# Keys whose values are choices of a group, not formats.
OTHER_NAMES = {"defaults", "recipe", "precision", "name"}
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def uses(fmt: NumberFormat) -> list[str]:
    """Return the yaml files of conf/ and of custom_fp that name this format, sorted, such as `recipe/nvfp4`."""
    names = {fmt.name, *fmt.synonyms}
    found = []
    for path, file in chain(_yaml_files(files(CONF_MODULE), ""), _yaml_files(files(RECIPES_MODULE), "")):
        text = file.read_text(encoding="utf-8")
        if any(name in text for name in names) and names & set(_words(yaml.load(text, LOADER))):
            found.append(path)
    return sorted(found)


def _yaml_files(folder: Traversable, under: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _yaml_files(entry, f"{under}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield under + entry.name.removesuffix(".yaml"), entry


def _words(said: Any) -> Iterator[str]:
    """Yield every text value. A text with commas is split into its items."""
    if isinstance(said, str):
        yield from (word.strip() for word in said.split(","))
    elif isinstance(said, Mapping):
        for key, value in said.items():
            if key not in OTHER_NAMES:
                yield from _words(value)
    elif isinstance(said, list):
        for value in said:
            yield from _words(value)
