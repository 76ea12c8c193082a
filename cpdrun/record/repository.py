"""The repository in whose folder a command was typed."""

import subprocess

GIT_TIMEOUT_S = 10


def git(*command: str) -> str | None:
    """What git prints about the current folder; None where it fails: no repository, no commit yet, no git."""
    try:
        done = subprocess.run(["git", *command], capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def git_commit() -> str | None:
    return (git("rev-parse", "HEAD") or "").strip() or None
