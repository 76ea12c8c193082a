"""Parse command lines that contain the command line of a script.

An example is `cpdrun search train.py --lr 0.1 -- recipe=bf16,nvfp4`. The words before `--` belong to the script and are
typed as after `python`. The words after `--` belong to cpdrun.
"""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence

from cpdrun.errors import MistypedError

# Commands that accept the command line of a script.
COMMANDS = ("sweep", "search", "predict")
# The Python interpreter, which may be typed before the script.
PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
Options = Mapping[str, argparse.Action]
# Launchers that cannot be typed before the script, because cpdrun starts the processes.
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
# A word that needs no quotes. shlex would quote the braces of {seed}.
PLAIN_WORD = re.compile(r"[\w@%+=:,./{}-]+")


def with_settings(typed: Sequence[str], options: Options) -> list[str]:
    """Return the typed words with a script's command line replaced by `script=...` and `script_args=...`.

    Args:
        typed: The command and its words.
        options: The command's own options by their names, such as `--dry-run`.

    Raises:
        MistypedError: It is not clear which words belong to the script.
    """
    words = list(typed)
    start = next((i for i, word in enumerate(words[1:], 1) if not _is_option(words, i, options)), len(words))
    first = start
    if start < len(words) and PYTHON.fullmatch(words[start]):
        start += 1
    if start < len(words) and words[start] in LAUNCHERS:
        raise MistypedError(
            f"{words[start]}: name the script itself, cpdrun starts its processes: "
            f"cpdrun {words[0]} train.py --lr 0.1 -- nproc=2"
        )
    if words[start : start + 1] == ["-m"] and start + 1 < len(words):
        path, rest = f"-m {words[start + 1]}", words[start + 2 :]
    elif start < len(words) and words[start].endswith(".py") and "=" not in words[start]:
        path, rest = words[start], words[start + 1 :]
    else:
        return words
    shown = f"cpdrun {words[0]} {path}"
    arguments, ours = _split(rest, options, shown)
    if arguments and any(word.startswith(("script_args=", "script.arguments=")) for word in ours):
        raise MistypedError(f"the arguments of {path} are given twice, before -- and as script_args=")
    settings = [f"script={path}"] + ([f"script_args={_joined(arguments)}"] if arguments else [])
    return [*words[:first], *settings, *ours]


def _is_option(words: list[str], i: int, options: Options) -> bool:
    """Return whether the word is an option of the command, or the value of the option before it."""
    before = options.get(words[i - 1])
    return words[i].partition("=")[0] in options or (before is not None and before.nargs != 0)


def _split(rest: list[str], options: Options, shown: str) -> tuple[list[str], list[str]]:
    """Split the words after the script's path.

    Returns:
        The script's arguments, and the words that belong to cpdrun.

    Raises:
        MistypedError: There is no `--`, and it is not clear which words belong to the script.
    """
    if "--" in rest:
        at = rest.index("--")
        return rest[:at], rest[at + 1 :]
    is_setting = ["=" in word and not word.startswith("-") for word in rest]
    is_option = [_is_option(["", *rest], i, options) for i in range(1, len(rest) + 1)]
    if rest and all(map(max, is_setting, is_option)):
        return [], rest
    if mistaken := next((word for word in rest if word.partition("=")[0] in options), None):
        raise MistypedError(
            f"does {mistaken} belong to the script or to cpdrun? Type the script's arguments before -- and "
            f"cpdrun's after it: {shown} ... -- {mistaken}"
        )
    if any(is_setting):
        at = is_setting.index(True)
        split = shlex.join([*rest[:at], "--", *rest[at:]])
        raise MistypedError(f"put -- between the script's arguments and cpdrun's settings: {shown} {split}")
    return rest, []


def _joined(arguments: list[str]) -> str:
    """Return the words as one text that a shell splits into the same words."""
    text = " ".join(word if PLAIN_WORD.fullmatch(word) else shlex.quote(word) for word in arguments)
    return f"{text} " if len(arguments) == 1 and text.startswith("'") else text
