"""Configurations that somebody else wrote, read with care: a run directory may come from anyone.

A few lines of yaml can stand for a thousand million values (aliases of aliases), for itself (an alias within its own
anchor), or for brackets nested so deep that the parser's stack ends the process. A run's configuration has a hundred
keys, four deep.
"""

from pathlib import Path
from typing import Any

import yaml

from cpdrun.record.layout import RunDir

MOST_BYTES = 16 << 20  # sweep.yaml names every run: 100,000 in 5 MB
MOST_VALUES = 300_000  # with what aliases repeat
MOST_DEPTH = 40
_LEAST_OPENED = 200  # this many brackets or dashes, and the depth is counted before the text is read
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast


class OutOfBoundsError(ValueError):
    """Yaml that is too large, too deep or without end to be anybody's configuration; one line says which."""


def read_config(run: RunDir) -> dict[str, Any]:
    """The configuration of `run`. Raises ValueError, in a line, where it is none; OSError where it cannot be read."""
    config = read_yaml(run.config)
    if not isinstance(config, dict) or "format" not in config:
        raise ValueError("holds no configuration")
    return config


def read_yaml(path: Path) -> Any:
    """What the yaml in `path` says. Raises as `read_config`."""
    with path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise OutOfBoundsError(f"is larger than {MOST_BYTES >> 20} MiB")
    try:
        if text.count(b"[") + text.count(b"{") + text.count(b"- ") + text.count(b"? ") >= _LEAST_OPENED:
            _check_depth(text)
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    except RecursionError:
        raise OutOfBoundsError("is nested too deep") from None
    _check_values(value)
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


def _check_values(whole: Any) -> None:
    waiting: list[tuple[Any, int]] = [(whole, 1)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > MOST_DEPTH:
            raise OutOfBoundsError("is nested too deep, or holds itself")
        if seen > MOST_VALUES:
            raise OutOfBoundsError(f"stands for more than {MOST_VALUES} values")
        if isinstance(value, dict | list | tuple | set):
            within = value.values() if isinstance(value, dict) else value
            waiting.extend((item, depth + 1) for item in within)
