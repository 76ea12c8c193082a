"""The commands, one per file.

In each file, `add` defines the arguments of the command, and `run` executes it. `run` also contains the imports that
take long. `DOCUMENTS` names the kinds of document that the command prints with --json, its own kind first. The values
are the dataclasses that define them, or `module:class` if importing the dataclass takes long.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from cpdrun.shell.document import ErrorDocument, json_schema


def document_types() -> dict[str, type]:
    """Return the dataclass of each kind of document (`cpdrun.shell.document`)."""
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
