"""Find built-in and user-defined number formats by name. This module does not import torch."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from custom_fp import formats
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scale import ScaleFormat
from custom_fp.formats.scaled_format import Affine, BlockFormat, Codebook
from custom_fp.formats.synonyms import meant

_PACKAGE_PREFIX = f"{formats.__name__}."
_MODULES_WITHOUT_KINDS = {
    _PACKAGE_PREFIX + name
    for name in ("names", "protocol", "synonyms", "layout", "scale", "tables", "elements")
}
_files = {file.name for file in walk_packages(formats.__path__, _PACKAGE_PREFIX)} - _MODULES_WITHOUT_KINDS
for _file in (f"{_PACKAGE_PREFIX}scalar", *sorted(_files)):  # import scalar first, so messages list it first
    import_module(_file)


def _kinds(under: type[NumberFormat] = NumberFormat) -> dict[str, type[NumberFormat]]:
    """Return the classes of formats by name. An abstract class, such as `Tabulated`, is replaced by its subclasses."""
    found: dict[str, type[NumberFormat]] = {}
    for kind in under.__subclasses__():
        found |= _kinds(kind) if isabstract(kind) else {kind.__name__: kind}
    return found


# The built-in classes of formats by name, without those whose formats cannot be referred to by a name
KINDS = {name: kind for name, kind in _kinds().items() if kind.EXAMPLES}

# Models that were saved by earlier versions contain the names of these kinds.
_FORMER_KINDS: dict[str, Callable[..., NumberFormat]]
_FORMER_KINDS = {"BlockFormat": BlockFormat, "Codebook": Codebook, "Affine": Affine}

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def parse(name: str | NumberFormat) -> NumberFormat:
    """Return the format with the given name. If `name` is a format, return it unchanged.

    Args:
        name: One of these:

            e5m2, e4m3fn, bf16 ...     A `Format`. PyTorch's names float8_e4m3fn and float8_e5m2 are accepted as well.
            posit8, p3109_k8p3se ...   A `Tabulated` format, of one of the kinds in by_table/.
            mxfp8_e4m3, nf4_b64 ...    A `ScaledFormat`.
            package.module.NAME        A format in a module of the user, on Python's path or in the working directory.
            any other name             A format that an installed package provides as an entry point `cpdrun.formats`.

    Raises:
        ValueError: There is no such format. The message says what is allowed.
    """
    if isinstance(name, NumberFormat):
        return name
    if not isinstance(name, str):
        raise _unknown(name)
    return _parse(name)


def is_own(name: object) -> bool:
    """Return whether `name` refers to a format in a user's module, which `parse` would import and thereby execute.

    This function imports nothing. Use it to check names from untrusted sources before parsing them.
    """
    return isinstance(name, str) and _PATH.fullmatch(name) is not None


@cache
def installed() -> dict[str, EntryPoint]:
    """Return the entry points `cpdrun.formats` of installed packages by name. Built-in formats take precedence."""
    return {entry.name: entry for entry in entry_points(group="cpdrun.formats")}


@cache
def spelled(fmt: NumberFormat) -> str:
    """Return the text from which `read` recreates the format in any process: its name if possible, or all its parts."""
    if _is_known(fmt):
        return fmt.name
    return json.dumps([type(fmt).__name__, _fields(fmt)], default=_fields)


def _fields(part: Any) -> Any:
    """Return the arguments that recreate a format or a part of a format, or only a name if `parse` knows the name."""
    if isinstance(part, ScaleFormat) or (isinstance(part, NumberFormat) and _is_known(part)):
        return str(part)
    return {field.name: getattr(part, field.name) for field in fields(part) if field.init}


def _is_known(fmt: NumberFormat) -> bool:
    """Return whether `parse` returns this format for its name."""
    try:
        return _parse(fmt.name) == fmt
    except ValueError:
        return False


def read(fmt: str | NumberFormat) -> NumberFormat:
    """Return the format with the given name, or the format from which `spelled` created the given text."""
    return _read(fmt) if type(fmt) is str else parse(fmt)


@cache
def _read(text: str) -> NumberFormat:
    if text.startswith("["):
        kind, values = json.loads(text)
        former = _FORMER_KINDS.get(kind)
        return former(**values) if former else _kinds()[kind](**values)
    return _parse(text)


@cache
def _parse(name: str) -> NumberFormat:
    known = _known(name)
    if known is not None:
        return known
    if name in installed():
        return _imported(installed()[name].value.replace(":", "."))
    if (instead := meant(name)) is not None and _known(instead.split()[0]) is not None:
        raise ValueError(
            f"unknown format {name!r} (did you mean {instead if ' ' in instead else repr(instead)}?)"
        )
    if is_own(name):
        return _imported(name)
    raise _unknown(name)


def _unknown(name: object) -> ValueError:
    looks = ", ".join([*(kind.LOOKS_LIKE for kind in KINDS.values()), *installed()])
    return ValueError(f"unknown format {name!r}; allowed: {looks}, or package.module.NAME of your own")


def _known(name: str) -> NumberFormat | None:
    """Return the built-in format with this name, or None. An invalid name such as e9m2 raises ValueError."""
    found = (kind.named(name) for kind in KINDS.values())
    return next((fmt for fmt in found if fmt is not None), None)


def _imported(path: str) -> NumberFormat:
    module, _, attribute = path.rpartition(".")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(
            here
        )  # unlike `python -m`, an installed command does not search the working directory
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"unknown format {path!r}: {error}") from None
    except (Exception, SystemExit) as error:  # importing a user's module can raise anything
        raise ValueError(
            f"unknown format {path!r}: importing its module raised {type(error).__name__}: {error}"
        ) from None
    if not isinstance(found, NumberFormat):
        raise ValueError(f"{path} is a {type(found).__name__}, not a format; allowed: a {', a '.join(KINDS)}")
    return found
