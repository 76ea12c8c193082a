"""The file that a run's weights begin with, as its name needs it: by contents, not by path."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError


def find_initial_weights(config: dict[str, Any]) -> None:
    """init_from becomes absolute, for a run may be started elsewhere, and init_sha256 the digest of its contents."""
    path = Path(config["init_from"]).expanduser().absolute()
    try:
        found = path.stat()
        digest = _sha256(path, found.st_size, found.st_mtime_ns)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"init_from={config['init_from']}: {path} cannot be read: {reason}") from None
    if config["init_sha256"] not in (None, digest):
        raise ConfigError(f"init_sha256={config['init_sha256']}: {path} has {digest}")
    config["init_from"], config["init_sha256"] = str(path), digest


@cache
def _sha256(path: Path, _size: int, _mtime_ns: int) -> str:
    """Once for all runs of a sweep; size and time are the file's, so that one that has changed is read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
