"""Which version of the record a file is of: the key `record` of done.json and sweep.yaml.

It rises only when what stood there before means something else, or is gone: a new key that may be absent is no new
version. A file that says nothing is of version 1, and what an older version means now is settled where it is read
(entries.py), so that a finished run stays finished. A newer one is not guessed at: that run, or what that sweep.yaml
says, is left out with one line, and the others count, as with anything else that cannot be read.
"""

from collections.abc import Mapping
from typing import Any

VERSION = 1
KEY = "record"


class NewerRecordError(ValueError):
    """What the file says may mean something else than it did; the line says which version it is of."""


def newer(value: Any) -> str:
    """What is wrong with the version of what a file holds, to be said after the file's name; "" where nothing is."""
    said = value.get(KEY, 1) if isinstance(value, Mapping) else 1
    if isinstance(said, int) and not isinstance(said, bool) and 1 <= said <= VERSION:
        return ""
    return f"is of record version {str(said)[:20]!r}, and this cpdrun reads versions up to {VERSION}: update cpdrun"
