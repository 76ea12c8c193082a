"""Text that a package of Debian's installs: a dictionary, manuals, or any folder of text files.

A document is a file, or a part of one. The documents stand in the order of the SHA-256 of their contents, each once: so
the order is the same wherever the same text is installed, and the first text_bytes, and the share held out at the end,
are fair samples of all, where the last letters of a dictionary, or the last folders of a manual, would be none.
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

GZIP = b"\x1f\x8b"  # how a gzipped file begins, dictzip's too


class PackageText(Text):
    """The documents, with an empty line after each; the first `text_bytes` of them (None: all).

    files: glob patterns below data_dir; of leave_out, of the paths below data_dir, none is read. split_at: a regular
    expression of what lies between two documents of a file; None: a file is one. Raises DataError where no file
    matches, naming the package, and for a file that cannot be read.
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
        if text_bytes is not None and text_bytes < 1:
            raise DataError(f"data.text_bytes must be at least 1, or null for all, not {text_bytes}")
        try:
            between = None if split_at is None else re.compile(split_at.encode())
        except re.error as error:
            raise DataError(f"data.split_at={split_at!r} is no regular expression: {error}") from None
        by_digest = {}
        for file in _files(self.path, files, leave_out):
            for document in between.split(_read(file)) if between else [_read(file)]:
                by_digest[hashlib.sha256(document).digest()] = document
        if not by_digest:
            raise DataError(
                f"the text of {package} is not in {self.path} (no {' or '.join(files)}): apt-get install {package}, "
                "or name its folder with data.data_dir=PATH; data=pydoc_text needs nothing"
            )
        text = b"\n\n".join(by_digest[digest] for digest in sorted(by_digest))[:text_bytes]
        super().__init__(text, context, test_fraction, bpe_vocab, cache_dir)


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
