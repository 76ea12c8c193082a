"""Identification of the file with a run's initial weights by its contents instead of its path."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError


def find_initial_weights(config: dict[str, Any]) -> None:
    """Make `init_from` an absolute path, and set `init_sha256` to the SHA-256 digest of the file's contents.

    The path must be absolute because the run may be started in another folder. `config` is changed in place.

    Raises:
        ConfigError: The file cannot be read, or the config has another digest.
    """
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
    """Return the SHA-256 digest of a file. The result is cached, so all runs of a sweep read the file once.

    Size and modification time are part of the cache key, so that a file that has changed is read again.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
