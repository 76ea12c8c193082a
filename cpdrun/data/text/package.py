"""Text that a Debian package installs, such as a dictionary or manuals, or any folder of text files.

A document is a file or a part of a file. Each document is used once, and the documents are ordered by the SHA-256
digest of their contents. So the order is the same wherever the same text is installed. The first `text_bytes` bytes,
and the test set at the end of the text, are random samples of the whole text, which the last letters of a dictionary or
the last folders of a manual would not be.
"""

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from cpdrun.data.base import DataError
from cpdrun.data.text.text import Text

GZIP = b"\x1f\x8b"  # the first bytes of a file compressed with gzip or dictzip


class PackageText(Text):
    """The text of a package, with an empty line after each document.

    Args:
        package: The name of the package, for error messages.
        data_dir: The folder that contains the files.
        files: Glob patterns, below `data_dir`, of the files to read.
        leave_out: Patterns of paths, below `data_dir`, of files that are not read.
        split_at: A regular expression that matches the text between two documents of a file. With None, each file is
            one document.
        context: The number of tokens of a sample.
        test_fraction: The fraction of the text that is the test set.
        text_bytes: The number of bytes that are used, from the start. With None, the whole text is used.
        bpe_vocab: The size of the vocabulary. With None, tokens are bytes.
        cache_dir: The folder that contains the cache.

    Raises:
        DataError: No file matches, a file cannot be read, or an argument is invalid.
    """

    def __init__(
        self,
        package: str,
        data_dir: str,
        files: Sequence[str],
        leave_out: Sequence[str],
        split_at: str | None,
        context: int,
        test_fraction: float,
        text_bytes: int | None,
        bpe_vocab: int | None,
        cache_dir: str,
    ):
        self.path = Path(data_dir).expanduser()
        check_text_bytes(text_bytes)
        documents = read_documents(self.path, files, leave_out, split_at)
        if not documents:
            raise DataError(
                f"the text of {package} is not in {self.path} (no {' or '.join(files)}): apt-get install {package}, "
                "or give its folder with data.data_dir=PATH. The text data=pydoc_text needs no installation."
            )
        text = b"\n\n".join(documents)[:text_bytes]
        super().__init__(text, context, test_fraction, bpe_vocab, cache_dir)


def check_text_bytes(text_bytes: int | None) -> None:
    """Raise DataError if the number of bytes that are used is out of range."""
    if text_bytes is not None and text_bytes < 1:
        raise DataError(f"data.text_bytes must be at least 1, or null for all, not {text_bytes}")


def read_documents(
    folder: Path, files: Sequence[str], leave_out: Sequence[str], split_at: str | None
) -> list[bytes]:
    """Return each document once, in the order of the SHA-256 digests. See `PackageText` for the arguments.

    Raises:
        DataError: A file cannot be read, or an argument is invalid.
    """
    try:
        between = None if split_at is None else re.compile(split_at.encode())
    except re.error as error:
        raise DataError(f"data.split_at={split_at!r} is not a regular expression: {error}") from None
    by_digest = {}
    for file in _files(folder, files, leave_out):
        for document in between.split(_read(file)) if between else [_read(file)]:
            by_digest[hashlib.sha256(document).digest()] = document
    return [by_digest[digest] for digest in sorted(by_digest)]


def _files(folder: Path, patterns: Sequence[str], leave_out: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        for path in folder.glob(pattern):
            below = path.relative_to(folder).as_posix()
            if path.is_file() and not any(fnmatchcase(below, out) for out in leave_out):
                yield path


def _read(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if data.startswith(GZIP) else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
