"""Keyword arguments as what is typed for a command: options, and key=value."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cpdrun.api.answer import Answer
from cpdrun.arguments import several
from cpdrun.config.errors import did_you_mean
from cpdrun.config.overrides import typed_form
from cpdrun.config.script import as_typed
from cpdrun.errors import UserError

RESULTS_DIR = "results_dir"


def typed(parser: argparse.ArgumentParser, words: Sequence[object], keywords: Mapping[str, Any]) -> list[str]:
    """What one would type behind the name of the command that `parser` reads. Raises UserError for a keyword that the
    command does not know, as far as its options tell: keys of the configuration are looked at by the command."""
    options = _options(parser)
    positional = next((action.dest for action in parser._actions if not action.option_strings), None)
    keys: list[str] = []
    found: list[str] = []
    for name, value in keywords.items():
        if name in options:
            found += _option(name, options[name], value)
        elif positional == "overrides" or (positional == "names" and name == RESULTS_DIR):
            keys += _overrides(name, value)
        else:
            raise UserError(f"{parser.prog} has no option {name!r}{did_you_mean(name, list(options))}")
    return [*map(_word, words), *keys, *found]


def _word(word: Any) -> str:
    """An answer stands for the sweep that it is of."""
    return str(word.path) if isinstance(word, Answer) else str(word)


def _options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """By the names that Python may call them: jobs_per_gpu, and wait as well as no_wait."""
    found = {}
    for action in parser._actions:
        if action.option_strings and action.dest not in ("help", "json"):
            for text in action.option_strings:
                if text.startswith("--"):
                    found[text[2:].replace("-", "_")] = action
            found[action.dest] = action
    return found


def _option(name: str, action: argparse.Action, value: Any) -> list[str]:
    text = action.option_strings[-1]
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UserError(f"{name}={value!r}: must be True or False")
        is_named_by_its_value = name == action.dest
        wanted = action.const if is_named_by_its_value else True
        return [text] if value is wanted else []
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = [",".join(f"{key}={typed_form(_plain(item))}" for key, item in value.items())]
    values = [str(_plain(item)) for item in (value if _is_several(value) else [value])]
    if isinstance(action, argparse._AppendAction):
        return [f"{text}={item}" for item in values]
    if action.nargs in ("+", "*"):
        return [text, *values]
    if action.type is several:
        return [f"{text}={','.join(values)}"]
    if len(values) != 1:
        raise UserError(f"{name}={value!r}: takes one value")
    return [f"{text}={values[0]}"]


def _overrides(key: str, value: Any) -> Iterator[str]:
    """`format=e4m3,fp32`; a mapping names the keys below this one."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _overrides(f"{key}.{name}", item)
    elif _is_several(value):
        values = [typed_form(_plain(item)) for item in value]
        if not values:
            raise UserError(f"{key}=[]: an axis needs a value; one that is an empty list is [[]]")
        yield f"{key}={','.join(values)}"
    elif as_typed(f"{key}=") is not None:  # text as it is, whatever it holds
        yield f"{key}={'null' if value is None else value}"
    else:
        yield f"{key}={typed_form(_plain(value))}"


def _is_several(value: Any) -> bool:
    return isinstance(value, list | tuple | range) or getattr(value, "ndim", 0) == 1


def _plain(value: Any) -> Any:
    """NumPy's and torch's numbers as Python's, a number format as its name, a path as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "code_bits") and hasattr(value, "name"):
        return value.name
    return value if isinstance(value, str | bool | int | float | list | tuple | dict | None) else str(value)
