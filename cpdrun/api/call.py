"""A command called from Python: typed, run in this process, its document handed back."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from cpdrun.api.answer import Answer
from cpdrun.api.words import typed
from cpdrun.cli import parsers, read
from cpdrun.errors import INTERRUPTED, Stopped
from cpdrun.shell.telling import Telling
from cpdrun.shell.terminal import Notebook, is_notebook


def call(command: str, words: Sequence[str], keywords: Mapping[str, Any], *, quiet: bool) -> Answer:
    """Raises UserError where the command would print an error, and Stopped where it was stopped."""
    began, parser = time.monotonic(), parsers()[command]
    arguments = read([command, *typed(parser, words, keywords)])
    arguments.began = began
    nowhere = Console(quiet=True, force_jupyter=False)
    telling = Telling(command, as_json=True, words=nowhere, progress=nowhere if quiet else _progress())
    arguments.telling = telling
    code = arguments.run(arguments)
    if code == INTERRUPTED:
        raise Stopped("stopped; what ran has saved, and the same call goes on from there")
    return Answer(telling.document(code))


def _progress() -> Console:
    """Looked up anew each time: notebooks and tests replace the streams."""
    return Notebook() if is_notebook() else Console(file=sys.stderr, highlight=False)
