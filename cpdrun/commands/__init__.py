"""The commands, one per file.

Each file defines `add`, which adds the command's arguments to a parser, and `run`, which executes the command.
`DOCUMENTS` maps each kind of document that the command prints with --json to its dataclass, the main kind first. A
dataclass that takes long to import is given as "module:class". For the same reason, slow imports are inside `run`.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from cpdrun.shell.document import ErrorDocument, json_schema


def document_types() -> dict[str, type]:
    """Return {kind: dataclass} of all documents."""
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
