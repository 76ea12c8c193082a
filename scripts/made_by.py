"""What stands beside a committed file that a script made: the command, the commit, versions, processor, time.

Such a file comes from one commit with nothing beside it, for else the commit says nothing: `clean_commit` refuses a
working tree that differs, before anything is computed.
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
    """The commit that is checked out; ends the script, with a line that says why, where that is not all there is."""
    commit = git_commit()
    if commit is None:
        sys.exit("error: not in a git repository: what is committed names the commit that it is of")
    if changed := git("status", "--porcelain"):
        sys.exit(
            f"error: the working tree differs from commit {commit[:10]}:\n{changed.rstrip()}\nCommit first."
        )
    return commit


def write_made_by(path: Path, commit: str, started: float, files: Sequence[str]) -> None:
    """`path`: of this list; `started`: of time.monotonic(); `files`: what else was made, names in the same folder."""
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
