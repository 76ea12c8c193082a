"""Run a command in this process and return its document."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from cpdrun.api.answer import Answer
from cpdrun.api.command_line import typed
from cpdrun.cli import parser_of, read
from cpdrun.errors import INTERRUPTED, Stopped
from cpdrun.shell.output import Output
from cpdrun.shell.terminal import Notebook, is_notebook


def call(command: str, words: Sequence[object], keywords: Mapping[str, Any], *, quiet: bool) -> Answer:
    """Run a command and return its document.

    Args:
        command: The command and its mode, if any: "search --plan".
        words: Positional arguments as on the command line: overrides or names.
        keywords: Options of the command, and keys of the configuration.
        quiet: Show no progress.

    Raises:
        UserError: The command cannot be run, or fails.
        Stopped: The command was interrupted or canceled.
    """
    began, parser = time.monotonic(), parser_of(command)
    arguments = read([*command.split(), *typed(parser, words, keywords)])
    arguments.began = began
    nowhere = Console(quiet=True, force_jupyter=False)
    output = Output(
        arguments.command, as_json=True, words=nowhere, progress=nowhere if quiet else _progress()
    )
    arguments.output = output
    code = arguments.run(arguments)
    if code == INTERRUPTED:
        raise Stopped("stopped. The results so far are saved, and the same call continues from there")
    return Answer(output.document(code))


def _progress() -> Console:
    """Return a new console, because notebooks and tests replace sys.stderr."""
    return Notebook() if is_notebook() else Console(file=sys.stderr, highlight=False)
