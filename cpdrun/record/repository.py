"""The repository in whose folder a command was typed."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

GIT_TIMEOUT_S = 10


def git(*command: str) -> str | None:
    """What git prints about the current folder; None where it fails: no repository, no commit yet, no git."""
    try:
        done = subprocess.run(["git", *command], capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def changes_of(files: Iterable[Path]) -> tuple[str | None, list[str]]:
    """Return how these files differ from the last commit, as a diff, and the names of those that are not tracked.

    Files outside the repository and ignored files are left out. The diff is None without a repository or a commit.
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
