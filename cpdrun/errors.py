"""The one base of what is told to a user in a line, without a traceback. `cpdrun.cli.main` alone catches it."""

import contextlib
from collections.abc import Iterator

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class UserError(Exception):
    """What was given or found, what is allowed, what to do: one line for each of `args`.

    `exit_code` is the command's: 2 for a usage or configuration error, 1 where something that was begun has failed.
    `consequence` follows the last line.
    """

    exit_code = USAGE
    consequence = ""

    @property
    def lines(self) -> list[str]:
        return [str(problem) for problem in self.args]

    def __str__(self) -> str:
        """As it is told: its lines, the consequence behind the last."""
        return "\n".join(self.told())

    def told(self) -> list[str]:
        if not self.consequence:
            return self.lines
        *before, last = (line if line.endswith((".", "?", "!")) else f"{line}." for line in self.lines)
        return [*before, f"{last} {self.consequence}"]


class MistypedError(UserError):
    """Words of a command line that cannot be read: `usage`, how they could be."""

    def __init__(self, problem: str, usage: str) -> None:
        super().__init__(problem)
        self.usage = usage


class Stopped(KeyboardInterrupt):
    """Stopped by Ctrl-C, or from another shell: what ran has saved, and the same call goes on from there."""


class CannotWriteError(UserError):
    """A file or folder of the record cannot be written."""


@contextlib.contextmanager
def before_a_start() -> Iterator[None]:
    """What is wrong in here keeps everything from starting, and the user is told so."""
    try:
        yield
    except UserError as error:
        error.consequence = "Nothing was started."
        raise


@contextlib.contextmanager
def writing(what: object) -> Iterator[None]:
    """An OSError in here is the user's: raises CannotWriteError, which names the file, or else `what`."""
    try:
        yield
    except OSError as error:
        raise CannotWriteError(f"cannot write {error.filename or what}: {error.strerror}") from error
