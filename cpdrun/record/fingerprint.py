"""Compute digests of the code and data of a run, and find changes since the run was trained.

A run's name is a hash of its configuration only. If code or data change, the same command therefore plans runs with the
same names. env.json contains the digests of code and data, so that the command can report the change.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cpdrun.record.files import read_json
from cpdrun.record.layout import RunDir

DIGITS = 10  # the number of hexadecimal digits of a SHA-256 digest
# The largest number of files of a data folder that are included. Listing all files of ImageNet over a network takes
# minutes.
MOST_FILES = 20_000
# The largest number of bytes that are read. Of all further files, only the names and sizes are included.
MOST_BYTES = 64 << 20
OWN_PACKAGES = ("cpdrun", "custom_fp")
COMPUTES = {".py", ".so", ".pyd", ".h", ".cu", ".cuh"}


@cache
def file_digest(path: Path) -> str | None:
    """Return a digest of the file's bytes, or None if it cannot be read or is larger than MOST_BYTES."""
    try:
        content = _read_regular(path, MOST_BYTES + 1)
    except OSError:
        return None
    return hashlib.sha256(content).hexdigest()[:DIGITS] if len(content) <= MOST_BYTES else None


@cache
def data_digest(path: Path) -> str | None:
    """Return a digest of a file or of the files in a folder, or None if the path does not exist.

    The digest includes the names and sizes of the first MOST_FILES files, and the first MOST_BYTES of their contents.
    """
    digest, left = hashlib.sha256(), MOST_BYTES
    if not path.exists():
        return None
    for count, file in enumerate(_files(path)):
        if count == MOST_FILES:
            break
        try:
            size = file.stat().st_size
            digest.update(f"{file.relative_to(path)}\0{size}\0".encode(errors="surrogateescape"))
            if left > 0:
                content = _read_regular(file, left)
                digest.update(content)
                left -= len(content)
        except OSError:
            digest.update(b"unreadable\0")
    return digest.hexdigest()[:DIGITS]


@cache
def own_digest() -> str:
    """Return a digest of the code of cpdrun and custom_fp. Results may differ if the code does."""
    digest = hashlib.sha256()
    for package in OWN_PACKAGES:
        spec = find_spec(package)
        for root in sorted(spec.submodule_search_locations or ()) if spec else ():
            for file in _files(Path(root)):
                if file.suffix in COMPUTES:
                    digest.update(f"{package}/{file.relative_to(root)}\0{file_digest(file)}\0".encode())
    return digest.hexdigest()[:DIGITS]


def code_digest(code: dict[str, dict[str, str]]) -> str:
    """Return one digest of all code that env.json lists."""
    text = "".join(f"{name}\0{entry['sha256']}\0" for name, entry in sorted(code.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def changes_since(env: Any, config: Mapping[str, Any]) -> list[str]:
    """Return the parts of code and data that have changed since env.json was written.

    Files that no longer exist cannot be compared and are left out.

    Args:
        env: The contents of env.json.
        config: The run's current config. Data is compared only if the config names its folder. The path in env.json
            alone is not sufficient, because env.json may come from an untrusted source and could name `/`.

    Returns:
        The names of changed modules, `cpdrun` if its own code has changed, and `data`.
    """
    if not isinstance(env, dict):
        return []
    changed = []
    code = env.get("code")
    for name, entry in code.items() if isinstance(code, dict) else ():
        if not isinstance(entry, dict):
            continue
        file = entry.get("file")
        if isinstance(file, str):
            now = file_digest(Path(file)) if file.endswith(".py") else None
        else:
            now = own_digest() if name == "cpdrun" else None
        if now is not None and now != entry.get("sha256"):
            changed.append(str(name))
    path = _data_path(env, config)
    if path is not None and data_digest(path) not in (None, env.get("data_sha256")):
        changed.append("data")
    return changed


def data_folders(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the absolute paths of the folders in a run's section `data`. They are not part of its identity."""
    data = config.get("data")
    named = data.items() if isinstance(data, Mapping) else ()
    return {
        key: str(Path(value).expanduser().resolve())
        for key, value in named
        if key.endswith("_dir") and key != "cache_dir" and isinstance(value, str)
    }


def _data_path(env: Mapping[str, Any], config: Mapping[str, Any]) -> Path | None:
    """Return the current path of the data, or None if `config` does not name a folder or file that contains it.

    If the config names another folder than the recorded run did, the path in that folder is returned.
    """
    path, before = env.get("data_path"), env.get("data_folders")
    if not isinstance(path, str):
        return None
    for key, folder in data_folders(config).items():
        old = before.get(key) if isinstance(before, dict) else None
        if isinstance(old, str) and folder != old and Path(path).is_relative_to(old):
            return Path(folder) / Path(path).relative_to(old)
    data = config.get("data")
    named = [value for value in data.values() if isinstance(value, str)] if isinstance(data, Mapping) else []
    places = [Path(value).expanduser().resolve() for value in named if value]
    return Path(path) if any(Path(path).is_relative_to(place) for place in places) else None


def changed_runs(runs: Iterable[tuple[RunDir, Mapping[str, Any]]]) -> dict[str, list[str]]:
    """Return the parts of code and data that have changed since runs were trained, keyed by the run's name.

    Args:
        runs: The runs, each with its config. Runs without a change are left out of the result.
    """
    return {
        run.name: changed for run, config in runs if (changed := changes_since(read_json(run.env), config))
    }


def _files(path: Path) -> Iterator[Path]:
    """Yield a file, or the files of a folder in a fixed order without caches and hidden files."""
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))


def _read_regular(path: Path, size: int) -> bytes:
    """Return the first `size` bytes of a regular file. Links are followed. Return b"" for a device or a pipe."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(size) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
