"""The version of the record, which done.json and sweep.yaml contain under the key `record`.

The version increases only if the meaning of a key changes or a required key is removed. A new optional key does not
change the version. A file without the key has version 1.

Older versions are converted when they are read (entries.py), so a finished run remains finished. A file with a newer
version is not read. A message then says that the run or the sweep.yaml is ignored, as with any unreadable file.
"""

from collections.abc import Mapping
from typing import Any

VERSION = 1
KEY = "record"


class NewerRecordError(ValueError):
    """Raised if a file has a newer version, in which its contents may have another meaning."""


def newer(value: Any) -> str:
    """Return a description of the problem if the version of a file cannot be read, and "" otherwise.

    The description is the end of a sentence that begins with the name of the file.
    """
    version = value.get(KEY, 1) if isinstance(value, Mapping) else 1
    if isinstance(version, int) and not isinstance(version, bool) and 1 <= version <= VERSION:
        return ""
    return f"is of record version {str(version)[:20]!r}, and this cpdrun reads versions up to {VERSION}: update cpdrun"
