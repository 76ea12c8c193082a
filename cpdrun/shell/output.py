"""The output of a command: text for people, and one document for programs.

With `--json`, a command prints its document on stdout and nothing else. A call from Python (`cpdrun.api`) returns the
same document. It looks like this:

    {"schema": "cpdrun.sweep/1", "exit_code": 0, ...}

docs/json.md describes the documents, and `cpdrun.shell.document` generates their JSON Schemas.
"""

import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cpdrun.errors import UserError
from cpdrun.shell.document import ErrorDocument, FailureDocument, schema_name, to_plain
from cpdrun.shell.sanitize import visible_line

if TYPE_CHECKING:
    from rich.console import Console

ERROR = "error"


class Output:
    """The output of one call of a command.

    Args:
        command: The kind of the command's document.
        as_json: Whether to print a document on stdout. All text then goes to stderr.
        words: The console for the answer as text. Default: stdout, or stderr with `as_json`.
        progress: The console for progress. Default: the console of the answer.

    Attributes:
        notes: The notes for the user so far, which the document contains too.
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
        self._result: object = None
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

    def print_lines(self, lines: Iterable[str]) -> None:
        """Print lines of the answer on the console, where a closed pipe does not end the command."""
        for line in lines:
            self.console.print(line, soft_wrap=True, markup=False)

    def note(self, line: str, kind: str = "note") -> None:
        """Print "KIND: LINE" as progress, and add the line to `notes`."""
        self.notes.append(line)
        self.print_progress(f"{kind}: {line}")

    def print_progress(self, line: str) -> None:
        """Print a line that is not part of the answer, by default on stderr."""
        if self._progress is not None:
            self._progress.print(visible_line(line), soft_wrap=True, markup=False, highlight=False)
        else:
            print(visible_line(line), file=sys.stderr, flush=True)

    def announce(self, line: str) -> None:
        """Print a line about the next action of the command, if stderr is a terminal.

        If stderr is a pipe, it contains only notes and errors.
        """
        if self._progress is None and sys.stderr.isatty():
            self.print_progress(line)

    def set_result(self, document: object, kind: str | None = None) -> None:
        """Set or replace the result of the command.

        Args:
            document: A dataclass that defines a kind of document.
            kind: The kind of the document, if it is not the command's main kind.
        """
        self._result, self._kind = document, kind or self.command

    def document(self, exit_code: int, error: UserError | None = None) -> dict[str, Any]:
        """Return the result as plain data with the name of its schema.

        If the command ended without a result, return an error document.
        """
        lines = ["interrupted"] if error is None else error.full_lines()
        kind, result, failure = self._kind, self._result, error and {ERROR: FailureDocument(lines)}
        if result is None:
            kind, result, failure = ERROR, ErrorDocument(self.command, lines), None
        envelope = {"schema": schema_name(kind, type(result)), "exit_code": exit_code}
        return envelope | to_plain(result) | to_plain(failure or {})


def print_document(document: Mapping[str, Any]) -> None:
    """Print a document as JSON on stdout."""
    from cpdrun.record import json_text

    print(json_text(document), flush=True)
