"""Find the files that a dataset reads, and identify them by digests of their contents.

The name of a run contains the digests in place of the paths. So a moved file is the same run, and a changed file is a
new run.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError

FILES_SHA256, TOKENIZER_SHA256 = "files_sha256", "tokenizer_sha256"
TABLES = ("train", "test")
DATASET = "dataset"  # a name on the Hugging Face hub, or a folder
TOKENIZER = "tokenizer"  # a name on the Hugging Face hub, or a folder
# The keys of paths that a digest in the config replaces in the name of a run, by the key of the digest.
IDENTIFIED_BY = {
    f"data.{FILES_SHA256}": tuple(f"data.{key}" for key in (*TABLES, DATASET)),
    f"data.{TOKENIZER_SHA256}": (f"data.{TOKENIZER}",),
}
# The files of a folder that determine its tokenizer. The folder may also contain the weights of a model.
TOKENIZER_FILES = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "config.json"),
    *("vocab*", "merges.txt", "*.model", "*.tiktoken"),
)


def find_data_files(config: dict[str, Any]) -> None:
    """Make the paths in the section `data` absolute and set their digests, in place.

    The paths must be absolute because the run may be started in another folder. Only sections with the keys of the
    digests are changed.

    Raises:
        ConfigError: A file cannot be read, or the config has another digest.
    """
    data = config["data"]
    found = {}
    if FILES_SHA256 in data:
        found = {key: _tables(key, data[key]) for key in TABLES if data.get(key)}
        if (folder := _folder(data.get(DATASET))) is not None:
            found[DATASET] = str(folder)
        found[FILES_SHA256] = digest_files(found) if found else None
    if TOKENIZER_SHA256 in data:
        folder, name = _folder(data.get(TOKENIZER)), data.get(TOKENIZER)
        if folder is None and isinstance(name, str) and name.startswith(("/", "~", "./", "../")):
            raise ConfigError(
                f"data.{TOKENIZER}={name}: {Path(name).expanduser().absolute()} is not a folder"
            )
        if folder is not None:
            found[TOKENIZER] = str(folder)
        found[TOKENIZER_SHA256] = digest_tokenizer(folder) if folder else None
    for key in (FILES_SHA256, TOKENIZER_SHA256):
        if key in found and data[key] not in (None, found[key]):
            raise ConfigError(f"data.{key}={data[key]} does not match: the digest is {found[key]}")
    config["data"] = data | found


def digest_files(paths: Mapping[str, Any]) -> str:
    """Return the SHA-256 digest of the contents of tables and of the folder of a dataset, keyed by setting.

    Raises:
        ConfigError: A file cannot be read.
    """
    lines = []
    for key, value in paths.items():
        for path in value if isinstance(value, list) else [value]:
            root = Path(path)
            for file in sorted(files_in(root)):
                name = file.relative_to(root).as_posix() if key == DATASET else ""
                lines.append(f"{key} {name} {sha256_of(f'data.{key}', file)}")
    return _joined(lines)


def digest_tokenizer(folder: Path) -> str:
    """Return the SHA-256 digest of the files of a tokenizer.

    Raises:
        ConfigError: A file cannot be read.
    """
    files = sorted({file for pattern in TOKENIZER_FILES for file in folder.glob(pattern) if file.is_file()})
    return _joined(f"{file.name} {sha256_of(f'data.{TOKENIZER}', file)}" for file in files)


def _tables(key: str, value: Any) -> Any:
    """Return the absolute paths of one file or of several files."""
    paths = value if isinstance(value, list) else [value]
    if not all(isinstance(path, str) for path in paths):
        raise ConfigError(f"data.{key}={value}: must be a file, or a list of files, such as [a.csv,b.csv]")
    absolute = [str(Path(path).expanduser().absolute()) for path in paths]
    for path in absolute:
        if Path(path).is_dir():
            raise ConfigError(f"data.{key}={path} is a folder. Name its files, such as [a.csv,b.csv]")
    return absolute if isinstance(value, list) else absolute[0]


def _folder(name: Any) -> Path | None:
    """Return the absolute path of a folder, or None if there is no such folder."""
    folder = Path(name).expanduser().absolute() if isinstance(name, str) and name else None
    return folder if folder is not None and folder.is_dir() else None


def files_in(path: Path) -> Iterator[Path]:
    """Yield a file, or the files below a folder except hidden ones."""
    if not path.is_dir():
        yield path
        return
    for file in path.rglob("*"):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden:
            yield file


def _joined(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def sha256_of(key: str, file: Path) -> str:
    """Return the SHA-256 digest of a file, which the given key of the config names.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        found = file.stat()
        return _cached_sha256(file, found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read: {error.strerror or type(error).__name__}") from None


@cache
def _cached_sha256(file: Path, _size: int, _mtime_ns: int) -> str:
    """Return a file's SHA-256 digest, cached until its size or modification time changes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
