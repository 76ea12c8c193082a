"""The commands, one per file.

In each file, `add` defines the arguments of the command, and `run` executes the command. Imports that take long are
inside `run`. `DOCUMENTS` maps each kind of document that the command prints with --json to the dataclass that defines
it. If importing the dataclass takes long, its place is given as text: `module:class`. The command's main kind of
document comes first.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from cpdrun.shell.document import ErrorDocument, json_schema


def document_types() -> dict[str, type]:
    """Return the dataclasses that define documents, keyed by kind of document (`cpdrun.shell.document`)."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found: dict[str, type] = {}
    for module in modules:
        for kind, where in getattr(module, "DOCUMENTS", {}).items():
            if isinstance(where, str):
                file, _, name = where.partition(":")
                where = getattr(import_module(file), name)
            found[kind] = where
    return found | {"error": ErrorDocument}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document, such as "search"."""
    return json_schema(kind, document_types()[kind])
