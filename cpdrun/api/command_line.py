"""Convert Python arguments to command-line arguments: options, and overrides of the form key=value."""

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
    """Return the command-line arguments that are equivalent to the given Python arguments.

    A keyword that is not an option becomes `key=value` if the command takes keys of the configuration. The command
    itself checks the keys.

    Args:
        parser: The parser of the command.
        words: Positional arguments as on the command line. An Answer stands for its sweep.
        keywords: Options of the command, and keys of the configuration.

    Raises:
        UserError: An option has an unsuitable value, or a keyword is neither an option nor a key.
    """
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
    return str(word.path) if isinstance(word, Answer) else str(word)


def _options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options of a command, keyed by Python keyword.

    An option that argparse stores under another name has two keywords: `no_wait` and `wait` set --no-wait.
    """
    found = {}
    for action in parser._actions:
        if action.option_strings and action.dest not in ("help", "json"):
            for text in action.option_strings:
                if text.startswith("--"):
                    found[text[2:].replace("-", "_")] = action
            found[action.dest] = action
    return found


def _option(name: str, action: argparse.Action, value: Any) -> list[str]:
    """Return the arguments for one option. There are none if the value is None or the default of a flag."""
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
    """Yield the overrides for a key, such as `format=e4m3,fp32`.

    A list or a one-dimensional array makes an axis. A mapping sets the keys of the section `key`.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _overrides(f"{key}.{name}", item)
    elif _is_several(value):
        values = [typed_form(_plain(item)) for item in value]
        if not values:
            raise UserError(
                f"{key}=[]: an axis needs at least one value. Write [[]] for a single value that is an empty list"
            )
        yield f"{key}={','.join(values)}"
    elif as_typed(f"{key}=") is not None:  # a key of text, which is not parsed
        yield f"{key}={'null' if value is None else value}"
    else:
        yield f"{key}={typed_form(_plain(value))}"


def _is_several(value: Any) -> bool:
    return isinstance(value, list | tuple | range) or getattr(value, "ndim", 0) == 1


def _plain(value: Any) -> Any:
    """Convert a value to plain Python data.

    NumPy's and torch's numbers and arrays become numbers and lists. A number format becomes its name, and any other
    object, such as a path, becomes text.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "code_bits") and hasattr(value, "name"):
        return value.name
    return value if isinstance(value, str | bool | int | float | list | tuple | dict | None) else str(value)
