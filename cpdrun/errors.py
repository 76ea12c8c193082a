"""The base class of all errors that the user sees as lines of text without a traceback.

`cpdrun.cli.main` prints the lines of an error that ends a command. The exit codes of the commands are defined here.
"""

import contextlib
from collections.abc import Iterator

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class UserError(Exception):
    """An error whose message says what was given or found, what is allowed, and what to do.

    Each of `args` is one line of the message.

    Attributes:
        exit_code: The exit code of the command: 2 for a usage or configuration error, and 1 if something failed after
            it was started.
        consequence: A sentence that follows the last line, or "".
    """

    exit_code = USAGE
    consequence = ""

    @property
    def lines(self) -> list[str]:
        """The lines of the message without the consequence."""
        return [str(problem) for problem in self.args]

    def __str__(self) -> str:
        """Return the lines of the message, with the consequence at the end of the last line."""
        return "\n".join(self.full_lines())

    def full_lines(self) -> list[str]:
        """Return the lines of the message. The consequence, if there is one, is at the end of the last line."""
        if not self.consequence:
            return self.lines
        *before, last = (line if line.endswith((".", "?", "!")) else f"{line}." for line in self.lines)
        return [*before, f"{last} {self.consequence}"]


class MistypedError(UserError):
    """A command line that cannot be parsed.

    Attributes:
        command: The command whose help explains the options, such as `cpdrun sweep`, or "".
    """

    def __init__(self, problem: str, command: str = "") -> None:
        super().__init__(problem)
        self.command = command


class Stopped(KeyboardInterrupt):
    """A call from Python was stopped by Ctrl-C or from another shell.

    The runs have saved their state, and the same call continues them.
    """


class CannotWriteError(UserError):
    """A file or folder of the record cannot be written."""


@contextlib.contextmanager
def before_a_start() -> Iterator[None]:
    """Set the consequence "Nothing was started." for every UserError raised in the context."""
    try:
        yield
    except UserError as error:
        error.consequence = "Nothing was started."
        raise


@contextlib.contextmanager
def writing(what: object) -> Iterator[None]:
    """Turn every OSError raised in the context into a CannotWriteError.

    Args:
        what: What is written. The message names it if the OSError has no file name.

    Raises:
        CannotWriteError: A file or folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise CannotWriteError(f"cannot write {error.filename or what}: {error.strerror}") from error
