"""Yaml that somebody else wrote, read with care.

A few lines of it can stand for a thousand million values (aliases of aliases), for itself (an alias within its own
anchor), or for brackets nested so deep that the parser's stack ends the process. A run's configuration has a hundred
keys, four deep.
"""

from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 1 << 20
MOST_VALUES = 20_000  # with what aliases repeat
MOST_DEPTH = 40
_LEAST_OPENED = 200  # this many brackets or dashes, and the depth is counted before the text is read
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast


class OutOfBoundsError(ValueError):
    """Yaml that is too large, too deep or without end to be anybody's configuration; one line says which."""


def read_yaml(path: Path, times: int = 1) -> Any:
    """What the yaml in `path` says, which may be so many times as long as a configuration. Raises ValueError, in
    a line, for what is no yaml or out of bounds; OSError where it cannot be read."""
    with path.open("rb") as file:
        return parse_yaml(file.read(times * MOST_BYTES + 1), times)


def parse_yaml(text: bytes, times: int = 1) -> Any:
    """As `read_yaml`, of the text itself."""
    if len(text) > times * MOST_BYTES:
        raise OutOfBoundsError(f"is larger than {times * MOST_BYTES >> 20} MiB")
    try:
        if text.count(b"[") + text.count(b"{") + text.count(b"- ") + text.count(b"? ") >= _LEAST_OPENED:
            _check_depth(text)
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    except RecursionError:
        raise OutOfBoundsError("is nested too deep") from None
    _check_values(value, times * MOST_VALUES)
    return value


def _check_depth(text: bytes) -> None:
    """By the parser's events, which it finds without a stack of its own."""
    depth = 0
    for event in yaml.parse(text, _Loader):
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
            raise OutOfBoundsError("is nested too deep, or holds itself")
        if seen > most:
            raise OutOfBoundsError(f"stands for more than {most} values")
        if isinstance(value, dict | list | tuple | set):
            within = value.values() if isinstance(value, dict) else value
            waiting.extend((item, depth + 1) for item in within)
