"""Write made_by.txt, which describes how a committed file was made: command, commit, versions, processor and time.

The working tree must be equal to the commit, because otherwise the commit does not identify the code. `clean_commit`
rejects a changed working tree before anything is computed.
"""

import platform
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from cpdrun.record import git, git_commit, write_text
from cpdrun.record.cpu import processor

PACKAGES = ("numpy", "scipy", "torch")


def clean_commit() -> str:
    """Return the commit that is checked out. Exit with a message if there are further changes."""
    commit = git_commit()
    if commit is None:
        sys.exit("error: not in a git repository, but committed results name their commit")
    if changed := git("status", "--porcelain"):
        sys.exit(
            f"error: the working tree differs from commit {commit[:10]}:\n{changed.rstrip()}\nCommit first."
        )
    return commit


def write_made_by(path: Path, commit: str, started: float, files: Sequence[str]) -> None:
    """Write made_by.txt.

    Args:
        path: The file to write.
        commit: The commit of the code.
        started: The value of time.monotonic() at the start.
        files: The names of the other files that were made, in the same folder.
    """
    lines = [
        f"command    python {shlex.join([_typed(sys.argv[0]), *sys.argv[1:]])}",
        f"commit     {commit}",
        f"python     {platform.python_version()}",
        f"versions   {'; '.join(f'{name} {version(name)}' for name in PACKAGES)}",
        f"processor  {processor()[0]}",
        f"wall time  {time.monotonic() - started:.0f} s since the last start",
        f"files      {' '.join([*files, path.name])}",
    ]
    write_text(path, "\n".join(lines) + "\n")


def _typed(script: str) -> str:
    path = Path(script).resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name
