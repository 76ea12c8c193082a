"""Dotted keys of nested mappings: `optim.lr` is config["optim"]["lr"]. No Hydra, so that anyone may import it."""

from collections.abc import Iterator, Mapping
from typing import Any

INGREDIENTS = "ingredients"  # the section of what a recipe leaves open


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf; an empty mapping is a leaf."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def copied(node: Any) -> Any:
    """A copy of plain data, dicts and lists within each other; copy.deepcopy takes ten times as long."""
    if isinstance(node, dict):
        return {key: copied(value) for key, value in node.items()}
    return [copied(value) for value in node] if isinstance(node, list) else node


def has_key(config: Mapping[str, Any], key: str) -> bool:
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def set_key(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, making the mappings on the way."""
    *path, last = key.split(".")
    for part in path:
        if not isinstance(config.get(part), dict):
            config[part] = {}
        config = config[part]
    config[last] = value


def delete_key(config: dict[str, Any], key: str) -> None:
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    del config[last]


def get_key(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value
