"""Metrics by patterns in what a script prints.

A pattern says where a number stands; what the number is, is read here. `([0-9.]+)` stops in the middle of 3.2e-05 and
does not match nan, and a value cut short, or the last one from before a run diverged, would look like a result.
"""

import re
from collections.abc import Mapping

from cpdrun.config.script import PLACES
from cpdrun.record import LoggedRow

NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
# of a pattern: an escape, a class or a bracket
TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", re.DOTALL)
CAPTURES = re.compile(r"(?!\?)|\?P<")  # behind the bracket that opens a group
NOT_FINITE = r"([+-]?(?:nan|inf(?:inity)?)\b)"


class Patterns:
    """The patterns of `script.metrics`; remembers the last epoch and step that it saw."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = {name: _both(pattern) for name, pattern in patterns.items()}
        self._places: dict[str, float] = {}

    def row(self, line: str) -> LoggedRow | None:
        """The metrics of a line; the last match of each pattern in it counts. None where there are none."""
        values: dict[str, float | None] = {
            name: value
            for name, patterns in self._patterns.items()
            if (value := _value(patterns, line)) is not None
        }
        self._places |= {name: place for name in PLACES if (place := values.pop(name, None)) is not None}
        if not values:
            return None
        step = self._places.get("step")
        epoch = self._places.get("epoch")
        return LoggedRow(epoch, None if step is None else int(step), values)


def _both(pattern: str) -> list[re.Pattern]:
    """The pattern, and the same with nan and inf where its group stands."""
    return [re.compile(pattern), re.compile(_with_group(pattern, NOT_FINITE), re.IGNORECASE)]


def _value(patterns: list[re.Pattern], line: str) -> float | None:
    found = [(match.end(1), match) for pattern in patterns for match in pattern.finditer(line) if match[1]]
    return _number(line, max(found, key=lambda one: one[0])[1]) if found else None


def _number(line: str, match: re.Match) -> float | None:
    """The whole number that begins where the group does, though the group may stop earlier, or the number have commas
    between its digits; None where there is none."""
    text, start = match[1].strip(), match.start(1) + len(match[1]) - len(match[1].lstrip())
    whole = NUMBER.match(line, start)
    if whole is not None and whole[0].startswith(text.rstrip(".,;:)%")):
        return float(whole[0])
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _with_group(pattern: str, group: str) -> str:
    """`pattern` with its one capturing group replaced."""
    start, depth = None, 0
    for token in TOKEN.finditer(pattern):
        if start is None and token[0] == "(" and CAPTURES.match(pattern, token.end()):
            start = token.start()
        if start is not None:
            depth += (token[0] == "(") - (token[0] == ")")
            if depth == 0:
                return pattern[:start] + group + pattern[token.end() :]
    return pattern
