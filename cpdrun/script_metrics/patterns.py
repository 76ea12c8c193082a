"""Find metrics in the lines that a script prints.

With `script.metrics`, a regular expression per metric says where its number is. Without it, printed pairs such as
`val_loss=0.41`, `val_loss: 0.41` and `val loss 0.41` are found if the name is one of a known metric.

A pattern only says where a number starts; the number itself is parsed here. `([0-9.]+)` stops in the middle of 3.2e-05
and matches neither `nan` nor `-1.5`, and a truncated value would look like a result.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cpdrun.config.script import NUMBER, PLACES, direction_of, with_number
from cpdrun.record import LoggedRow

# Parts of a regular expression: an escape, a character class or a parenthesis.
TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", re.DOTALL)
CAPTURES = re.compile(r"(?!\?)|\?P<")  # what follows the parenthesis of a capturing group
WHOLE_NUMBER = re.compile(NUMBER)
# Values that a group such as ([0-9.]+) misses: nan, inf and signed numbers.
NOT_MATCHED_BY_DIGITS = rf"([+-]?(?:nan|inf(?:inity)?)\b|[+-](?=[\d.]){NUMBER})"
QUALIFIERS = (
    "train|training|val|valid|validation|test|testing|eval|evaluation|dev|average|avg|mean|final|best"
)
PRINTED = re.compile(
    rf"""(?<![\w./-])['"]?(?P<name>(?:(?:{QUALIFIERS})[ ]+(?:set[ ]+)?)?[A-Za-z][\w./@-]*)['"]?"""
    rf"""(?:\s*[=:]\s*|\s+)(?P<value>{NUMBER}|[+-]?(?:nan|inf(?:inity)?))(?!\w)(?P<ratio>\s*/\s*\d)?""",
    re.IGNORECASE,
)
PLACE_NAMES = {"epoch": "epoch", "step": "step", "global_step": "step", "iter": "step", "iteration": "step"}


class Patterns:
    """Finds metrics in a script's output, and remembers the last epoch and step that were printed.

    Args:
        script: The section `script` of a run's config.
    """

    def __init__(self, script: Mapping[str, Any]) -> None:
        self._patterns = {name: _variants(with_number(p)) for name, p in script["metrics"].items()}
        self._directions = script["direction"]
        self._wanted = script["metric"]
        self._places: dict[str, float] = {}

    def row(self, line: str) -> LoggedRow | None:
        """Return the metrics of a line, or None if it has none. The last match of each name in the line counts."""
        values: dict[str, float | None] = {}
        if self._patterns:
            for name, variants in self._patterns.items():
                if (value := _last_value(variants, line)) is not None:
                    values[name] = value
        else:
            values.update(self._pairs(line))
        self._places |= {name: place for name in PLACES if (place := values.pop(name, None)) is not None}
        if not values:
            return None
        step = self._places.get("step")
        epoch = self._places.get("epoch")
        return LoggedRow(epoch, None if step is None else int(step), values)

    def _pairs(self, line: str) -> Iterator[tuple[str, float]]:
        """Yield the printed pairs of a name and a number that look like metrics."""
        for match in PRINTED.finditer(line):
            name = re.sub(r"\s+", "_", match["name"].strip())
            place = PLACE_NAMES.get(name.lower())
            if place is not None:
                yield place, _parse(match["value"])
            elif not match["ratio"] and (name == self._wanted or direction_of(name, self._directions)):
                yield name, _parse(match["value"])


def _variants(pattern: str) -> list[re.Pattern]:
    """Compile the pattern, and a second version whose group also matches signed numbers, nan and inf."""
    return [re.compile(pattern), re.compile(_with_group(pattern, NOT_MATCHED_BY_DIGITS), re.IGNORECASE)]


def _last_value(variants: list[re.Pattern], line: str) -> float | None:
    found = [(match.end(1), match) for pattern in variants for match in pattern.finditer(line) if match[1]]
    return _number_at(line, max(found, key=lambda one: one[0])[1]) if found else None


def _number_at(line: str, match: re.Match) -> float | None:
    """Return the whole number that starts where the group does, or None if there is none.

    The group may match only the first digits of the number.
    """
    text, start = match[1].strip(), match.start(1) + len(match[1]) - len(match[1].lstrip())
    whole = WHOLE_NUMBER.match(line, start)
    if whole is not None and whole[0].startswith(text.rstrip(".,;:)%")):
        return _parse(whole[0])
    try:
        return _parse(text)
    except ValueError:
        return None


def _parse(text: str) -> float:
    return float(text.replace(",", ""))


def _with_group(pattern: str, group: str) -> str:
    """Return `pattern` with its one capturing group replaced by `group`."""
    start, depth = None, 0
    for token in TOKEN.finditer(pattern):
        if start is None and token[0] == "(" and CAPTURES.match(pattern, token.end()):
            start = token.start()
        if start is not None:
            depth += (token[0] == "(") - (token[0] == ")")
            if depth == 0:
                return pattern[:start] + group + pattern[token.end() :]
    return pattern
