"""Query the Git repository of the current folder."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

GIT_TIMEOUT_S = 10


def git(*command: str) -> str | None:
    """Return the output of a git command in the current folder.

    Return None if the command fails, for example because there is no repository, no commit, or no git.
    """
    try:
        done = subprocess.run(["git", *command], capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def changes_of(files: Iterable[Path]) -> tuple[str | None, list[str]]:
    """Return how files differ from the last commit, except ignored files and files outside the repository.

    Returns:
        The diff, and the names of the files that are not tracked. The diff is None if there is no repository or commit.
    """
    root = git("rev-parse", "--show-toplevel")
    if root is None or git_commit() is None:
        return None, []
    resolved = {file.resolve() for file in files}
    inside = sorted(str(file) for file in resolved if file.is_relative_to(root.rstrip("\n")))
    if not inside:
        return "", []
    literal = "--literal-pathspecs"
    diff = git(literal, "diff", "--no-color", "--no-ext-diff", "HEAD", "--", *inside)
    untracked = git(literal, "ls-files", "--others", "--exclude-standard", "--full-name", "--", *inside)
    return diff, (untracked or "").splitlines()


def git_commit() -> str | None:
    return (git("rev-parse", "HEAD") or "").strip() or None
