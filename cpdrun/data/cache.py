"""Folders of files that are made once and then kept in a cache."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def written_once(cache_dir: str, name: str, write: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, and make it first if it does not exist.

    The folder is written under a temporary name and then renamed, so a process that is killed leaves no partial folder.
    If several processes write the folder at the same time, one of them succeeds and the others use its result.

    Args:
        cache_dir: The folder that contains the cache.
        name: The name of the folder in the cache.
        write: Writes the files into the folder that it receives.

    Raises:
        OSError: The folder cannot be written.
    """
    cache = Path(cache_dir).expanduser()
    folder = cache / name
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=cache))
    try:
        write(unfinished)
        unfinished.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder
