"""The output of a command: text for people while it runs, and one document for programs at its end.

A document looks like this:

    {"schema": "cpdrun.sweep/1", "exit_code": 0, ...}

docs/json.md describes the documents, and cpdrun/schemas/*.json has their JSON Schemas. Only this module makes
documents. With `--json`, a command prints its document on stdout and nothing else. A call from Python (`cpdrun.api`)
returns the same document.
"""

import json
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cpdrun.errors import UserError
from cpdrun.shell.sanitize import visible_line

if TYPE_CHECKING:
    from rich.console import Console

ERROR = "error"
# The version of each kind of document. It rises when a key is removed or changes its meaning, but not when a key is
# added.
VERSIONS = {
    "sweep": 1,
    "search": 1,
    "next": 1,
    "screen": 1,
    "predict": 1,
    "judge": 1,
    "report": 1,
    "explain": 2,
    "status": 1,
    "logs": 1,
    "cancel": 1,
    "work": 1,
    "calibrate": 1,
    "formats": 1,
    "format": 1,
    "vectors": 1,
    "doctor": 1,
    "init": 1,
    "schema": 1,
    ERROR: 1,
}


class Output:
    """The output of one call of a command.

    Args:
        command: The kind of the command's document.
        as_json: Whether the command prints a document on stdout. All text then goes to stderr.
        words: The console for the answer as text. By default, the answer goes to stdout.
        progress: The console for progress. By default, progress is shown where the answer goes.

    Attributes:
        notes: The notes for the user so far. The document contains them, too.
    """

    def __init__(
        self,
        command: str,
        *,
        as_json: bool = False,
        words: "Console | None" = None,
        progress: "Console | None" = None,
    ) -> None:
        self.command = command
        self.as_json = as_json
        self.notes: list[str] = []
        self._words = words
        self._progress = progress
        self._facts: dict[str, Any] | None = None
        self._kind = command

    @cached_property
    def console(self) -> "Console":
        """The console for the answer as text."""
        from rich.console import Console

        from cpdrun.shell.terminal import Terminal

        if self._words is not None:
            return self._words
        return Console(stderr=True, highlight=False) if self.as_json else Terminal()

    @property
    def progress(self) -> "Console":
        """The console for the live table of runs and their results."""
        return self.console if self._progress is None else self._progress

    def print(self, line: str) -> None:
        """Print a line of the answer without markup or wrapping."""
        if self._words is not None:
            self._words.print(visible_line(line), soft_wrap=True, markup=False, highlight=False)
        else:
            print(visible_line(line), file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def note(self, line: str, kind: str = "note") -> None:
        """Print an additional fact that the user should know, and add it to `notes`.

        Args:
            line: The text of the note.
            kind: The word before the text, such as "note" or "error".
        """
        self.notes.append(line)
        self.print_progress(f"{kind}: {line}")

    def print_progress(self, line: str) -> None:
        """Print a line that is not part of the answer, on the progress console if there is one, or else on stderr."""
        if self._progress is not None:
            self._progress.print(visible_line(line), soft_wrap=True, markup=False, highlight=False)
        else:
            print(visible_line(line), file=sys.stderr, flush=True)

    def set_result(self, facts: Mapping[str, Any], kind: str | None = None) -> None:
        """Set the result, as plain data for programs. A later call replaces it."""
        self._facts, self._kind = dict(facts), kind or self.command

    def document(self, exit_code: int, error: UserError | None = None) -> dict[str, Any]:
        """Return the command's result as a document with the name of its schema.

        If the command stopped before it had a result, return an error document instead.
        """
        from cpdrun.record.files import finite

        failed = None if error is None else {"lines": error.told()}
        if self._facts is None:
            lines = ["interrupted"] if failed is None else failed["lines"]
            return {
                "schema": schema_name(ERROR),
                "exit_code": exit_code,
                "command": self.command,
                "lines": lines,
            }
        found = {"schema": schema_name(self._kind), "exit_code": exit_code, **finite(self._facts)}
        return found if failed is None else found | {ERROR: failed}


def print_document(document: Mapping[str, Any]) -> None:
    """Print a document as JSON on stdout."""
    from cpdrun.record import json_text

    print(json_text(dict(document)), flush=True)


def schema_name(kind: str) -> str:
    """Return the name of the schema of a kind of document, such as `cpdrun.sweep/1`."""
    return f"cpdrun.{kind}/{VERSIONS[kind]}"


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document, in its current version."""
    from importlib.resources import files

    text = files("cpdrun").joinpath("schemas", f"{kind}-{VERSIONS[kind]}.json").read_text(encoding="utf-8")
    return json.loads(text)
