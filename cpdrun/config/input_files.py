"""Find the files that a dataset or a pretrained model reads, and identify them by digests of their contents.

The name of a run contains the digests in place of the paths. So a moved file is the same run, and a changed file is a
new run.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError

FILES_SHA256, TOKENIZER_SHA256, MODEL_SHA256 = "files_sha256", "tokenizer_sha256", "sha256"
TABLES = ("train", "test")
DATASET = "dataset"  # a name on the Hugging Face hub, or a folder
TOKENIZER, MODEL_NAME = "tokenizer", "name"  # names on the Hugging Face hub, or folders
# For each key of a digest, the keys of the paths that it replaces in the name of a run.
IDENTIFIED_BY = {
    f"data.{FILES_SHA256}": tuple(f"data.{key}" for key in (*TABLES, DATASET)),
    f"data.{TOKENIZER_SHA256}": (f"data.{TOKENIZER}",),
    f"model.{MODEL_SHA256}": (f"model.{MODEL_NAME}",),
}
# The files of a folder that determine its model, and those that determine its tokenizer.
MODEL_FILES = ("config.json", "adapter_config.json", "*.safetensors*", "*.bin*")
TOKENIZER_FILES = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "config.json"),
    *("vocab*", "merges.txt", "*.model", "*.tiktoken"),
)


def find_input_files(config: dict[str, Any]) -> None:
    """Make the paths in the sections `data` and `model` absolute and set their digests, in place.

    The paths must be absolute because the run may be started in another folder. Only sections with the keys of the
    digests are changed.

    Raises:
        ConfigError: A file cannot be read, or the config has another digest.
    """
    if MODEL_SHA256 in config["model"]:
        found = _identified_folder("model", config["model"], MODEL_NAME, MODEL_SHA256, MODEL_FILES)
        config["model"] = _checked("model", config["model"], found)
    data = config["data"]
    found = {}
    if FILES_SHA256 in data:
        found = {key: _tables(key, data[key]) for key in TABLES if data.get(key)}
        if (folder := _folder(data.get(DATASET))) is not None:
            found[DATASET] = str(folder)
        found[FILES_SHA256] = digest_files(found) if found else None
    if TOKENIZER_SHA256 in data:
        found |= _identified_folder("data", data, TOKENIZER, TOKENIZER_SHA256, TOKENIZER_FILES)
    config["data"] = _checked("data", data, found)


def _identified_folder(
    section: str, settings: Mapping[str, Any], key: str, digest: str, patterns: Sequence[str]
) -> dict[str, Any]:
    """Return the absolute path of a folder and the digest of its files. The digest of a name on the hub is None."""
    name = settings.get(key)
    folder = _folder(name)
    if folder is not None:
        files = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
        return {key: str(folder), digest: digest_folder(f"{section}.{key}", folder, files)}
    if isinstance(name, str) and name.startswith(("/", "~", "./", "../")):
        raise ConfigError(f"{section}.{key}={name}: {Path(name).expanduser().absolute()} is not a folder")
    return {digest: None}


def _checked(section: str, settings: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with absolute paths and computed digests.

    Raises:
        ConfigError: A digest in the section differs from the computed one.
    """
    for key in (FILES_SHA256, TOKENIZER_SHA256, MODEL_SHA256):
        if key in found and settings[key] not in (None, found[key]):
            raise ConfigError(
                f"{section}.{key}={settings[key]} does not match: the digest is {found[key]}. If you typed no digest, "
                "the files have changed since the run was planned. Type the command again to plan new runs"
            )
    return {**settings, **found}


def digest_folder(key: str, folder: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 digest of the names and contents of some files in a folder.

    Args:
        key: The key of the config that names the folder, for messages.
        folder: The folder. Names are relative to it.
        files: The files, in any order.

    Raises:
        ConfigError: A file cannot be read.
    """
    return _joined(f"{file.relative_to(folder)} {sha256_of(key, file)}" for file in sorted(files))


def digest_files(paths: Mapping[str, Any]) -> str:
    """Return one SHA-256 digest for all files of a dataset, given the paths by setting (train, test or dataset).

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
    """Return the SHA-256 digest of a file. The key of the config that names the file is used in messages.

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
