"""Define the version of the record, which done.json and sweep.yaml contain under the key `record`.

The version increases only if the meaning of a key changes or a required key is removed. A new optional key does not
change the version. A file without the key has version 1.

Older versions are converted when they are read (entries.py), so a finished run stays finished. A file with a newer
version is not read. The run or the sweep.yaml is left out with a message, like any other file that cannot be read.
"""

from collections.abc import Mapping
from typing import Any

VERSION = 1
KEY = "record"


class NewerRecordError(ValueError):
    """A file has a newer version, in which its contents may have another meaning. The message names the version."""


def newer(value: Any) -> str:
    """Return the problem with the version of a file's contents, or "" if this version can be read.

    The problem is a part of a sentence that follows the name of the file.
    """
    version = value.get(KEY, 1) if isinstance(value, Mapping) else 1
    if isinstance(version, int) and not isinstance(version, bool) and 1 <= version <= VERSION:
        return ""
    return f"is of record version {str(version)[:20]!r}, and this cpdrun reads versions up to {VERSION}: update cpdrun"
