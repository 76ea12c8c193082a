"""The JSON documents of the commands and their JSON Schemas.

A dataclass defines each kind of document. Its fields are the keys, and "Attributes:" in its docstring describes them.
These rules also apply to nested dataclasses:

- A field declared by `optional()` is left out if it is None.
- A trailing underscore of a field's name is dropped: `from_` becomes `from`.
- NaN and infinite numbers are written as null.
- The class attribute VERSION (default 1) is increased when a key is removed or changes its meaning.
"""

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
EXIT_CODES = (0, 1, 2, 130)
OPTIONAL = "optional"


@dataclass
class FailureDocument:
    """The error that ended a command after it had a result.

    Attributes:
        lines: The lines of the message.
    """

    lines: list[str]


@dataclass
class ErrorDocument:
    """The error that ended a command before it had a result.

    Attributes:
        command: The kind of document that the command would have printed.
        lines: The lines of the message, as on stderr.
    """

    command: str
    lines: list[str]


def optional() -> Any:
    """Declare a field whose key is left out if its value is None."""
    return field(default=None, metadata={OPTIONAL: True})


def schema_name(kind: str, document_type: type) -> str:
    """Return the name of a document's schema, such as "cpdrun.sweep/1"."""
    return f"cpdrun.{kind}/{getattr(document_type, 'VERSION', 1)}"


def to_plain(value: Any) -> Any:
    """Convert a document, or a part of one, to plain data for JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            key.name.rstrip("_"): to_plain(item)
            for key in fields(value)
            if (item := getattr(value, key.name)) is not None or not key.metadata.get(OPTIONAL)
        }
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def json_schema(kind: str, document_type: type) -> dict[str, Any]:
    """Return the JSON Schema of the documents of `document_type`."""
    import msgspec

    [root, failure], parts = msgspec.json.schema_components(
        [document_type, FailureDocument], schema_hook=_path_schema, ref_template="#/$defs/{name}"
    )
    for part in parts.values():
        _describe(part)
    found = parts.pop(root["$ref"].rpartition("/")[2])
    for base in document_type.__mro__[1:-1]:
        _add_descriptions(found, parse_docstring(base.__doc__ or "")[1])
    name = schema_name(kind, document_type)
    return {
        "$schema": JSON_SCHEMA,
        "title": name,
        "description": found.get("description", ""),
        "type": "object",
        "properties": {
            "schema": {"const": name},
            "exit_code": {"enum": list(EXIT_CODES)},
            **_nullable_numbers(found["properties"]),
            "error": failure,
        },
        "required": ["schema", "exit_code", *found["required"]],
        "$defs": _nullable_numbers(parts),
    }


def _path_schema(python_type: type) -> dict[str, Any]:
    if issubclass(python_type, Path):
        return {"type": "string"}
    raise NotImplementedError(f"{python_type} in a document")


def parse_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into its text and {attribute: description}."""
    text, _, section = inspect.cleandoc(docstring).partition("Attributes:\n")
    attributes = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return text.strip(), {name: " ".join(words.split()) for name, words in attributes}


def _describe(part: dict[str, Any]) -> None:
    """Change msgspec's schema of a dataclass, in place, so that it describes the result of `to_plain`."""
    if "properties" not in part:
        return
    part["description"], attributes = parse_docstring(part.get("description", ""))
    _add_descriptions(part, attributes)
    part["required"] = [
        name.rstrip("_") for name, value in part["properties"].items() if value.pop("default", "") is not None
    ]
    part["properties"] = {name.rstrip("_"): value for name, value in part["properties"].items()}


def _add_descriptions(part: dict[str, Any], attributes: Mapping[str, str]) -> None:
    for name, text in attributes.items():
        part["properties"][name].setdefault("description", text)


def _nullable_numbers(value: Any) -> Any:
    """Allow null for every float, because `to_plain` converts NaN and inf to None."""
    if isinstance(value, dict):
        if value.get("type") == "number":
            return value | {"type": ["number", "null"]}
        return {key: _nullable_numbers(item) for key, item in value.items()}
    return [_nullable_numbers(item) for item in value] if isinstance(value, list) else value
