"""One name for any format: floating point, codebook, MX, or a user's own. Standard library only."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

from custom_fp.formats.block import ELEMENTS, BlockFormat
from custom_fp.formats.codebook import TABLES, Codebook
from custom_fp.formats.scalar import Format
from custom_fp.formats.synonyms import meant

ScaledFormat = Codebook | BlockFormat  # codes and, beside them, scales
AnyFormat = Format | Codebook | BlockFormat
_KINDS = (Format, Codebook, BlockFormat)

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def parse(name: str | AnyFormat) -> AnyFormat:
    """The format called `name`; a format is returned as it is.

    e5m2, e4m3fn, bf16 ...     `Format.parse`
    dynamic_tree, linear_b64   `Codebook.parse`
    mxfp8_e4m3, mxfp4 ...      `BlockFormat.parse`
    package.module.NAME        a format in a module of the user's own, on Python's path or in the working folder

    Raises ValueError, which tells what is allowed.
    """
    if isinstance(name, _KINDS):
        return name
    if not isinstance(name, str):
        raise _unknown(name)
    return _parse(name)


def as_scaled(fmt: str | AnyFormat) -> ScaledFormat | None:
    """The format if it keeps scales beside its codes (a codebook, a block format), else None. ValueError as `parse`."""
    if type(fmt) is Format:
        return None
    found = parse(fmt)
    return None if type(found) is Format else found


def is_scaled(fmt: str | AnyFormat) -> bool:
    """Whether a format keeps scales beside its codes. Raises ValueError as `parse`."""
    return as_scaled(fmt) is not None


def is_own(name: object) -> bool:
    """Whether `name` is that of a format in a module of the user's own, which `parse` would import and so run. This
    imports nothing: who reads names that others wrote asks here first."""
    return isinstance(name, str) and _PATH.fullmatch(name) is not None


@cache
def spelled(fmt: ScaledFormat) -> str:
    """A text that `read` makes the format of again, in any process: its name if `parse` knows it, else all of it."""
    try:
        if _parse(fmt.name) == fmt:
            return fmt.name
    except ValueError:
        pass
    if isinstance(fmt, Codebook):
        return json.dumps([fmt.name, fmt.block, [value.hex() for value in fmt.values]])
    return json.dumps([fmt.name, fmt.block, None if fmt.element is None else fmt.element.name])


@cache
def read(text: str) -> ScaledFormat:
    """The format with scales that `spelled` has written down. ValueError for any other."""
    if text.startswith("["):
        name, block, content = json.loads(text)
        if isinstance(content, list):
            return Codebook(name, tuple(map(float.fromhex, content)), block)
        return BlockFormat(name, content, block)
    found = as_scaled(text)
    if found is None:
        raise ValueError(f"{text} is no format with scales")
    return found


@cache
def _parse(name: str) -> AnyFormat:
    known = _known(name)
    if known is not None:
        return known
    if (instead := meant(name)) is not None and _known(instead.split(" or ")[0]) is not None:
        raise ValueError(f"unknown format {name!r} (did you mean {instead!r}?)")
    if is_own(name):
        return _imported(name)
    raise _unknown(name)


def _unknown(name: object) -> ValueError:
    return ValueError(
        f"unknown format {name!r}; allowed: e<1..8>m<0..23> (e5m2, e4m3fn), fp32 ..., {next(iter(ELEMENTS))} ..., "
        f"{next(iter(TABLES))} ..., package.module.NAME of your own"
    )


def _known(name: str) -> AnyFormat | None:
    """The format of ours that has this name, or None. ValueError for a name of ours that no format can have."""
    for kind in (Codebook, BlockFormat):
        try:
            return kind.parse(name)
        except ValueError:
            continue
    try:
        return Format.parse(name)
    except ValueError as error:
        if not str(error).startswith("unknown format"):
            raise
        return None


def _imported(path: str) -> AnyFormat:
    module, _, attribute = path.rpartition(".")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # an installed command does not look there, `python -m` does
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"unknown format {path!r}: {error}") from None
    except (Exception, SystemExit) as error:  # whatever runs there, and an exit is no exit of ours
        raise ValueError(
            f"unknown format {path!r}: its module ends with {type(error).__name__}: {error}"
        ) from None
    if not isinstance(found, _KINDS):
        raise ValueError(
            f"{path} is a {type(found).__name__}; a format is a Format, a Codebook or a BlockFormat"
        )
    return found
