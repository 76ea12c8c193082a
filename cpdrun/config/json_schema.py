"""The JSON Schema (draft 2020-12) of an experiment's yaml file, for editors that complete and check while you type.

The types come from the model in `schema`, the defaults from conf/, the descriptions from the comments in conf/, and the
choices of a group from its files. The schema accepts some files that `cpdrun sweep --dry-run`, which makes all checks,
rejects.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from cpdrun.config.compose import BASE, CONF_MODULE, EXPERIMENT, ROOT, SCRIPT_ROOT, Composer
from cpdrun.config.schema import ScriptRun, TrainingRun, json_schema_of, setting_types
from cpdrun.config.script import SCRIPT

Schema = dict[str, Any]
Comments = Mapping[tuple[str, ...], str]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = {"type": "string", "pattern": r"\$\{.+\}"}  # a reference to another key may replace any value
QUESTIONS = ("sweep", "search", "screen")  # sections of an experiment that are not in the config of a run
TYPES = setting_types(ScriptRun) | setting_types(TrainingRun)
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z_]\w*):(?P<value>[^#]*)(?:#(?P<comment>.*))?$")
_MORE = re.compile(r"^ *#(?P<comment>.*)$")


def experiment_schema(composer: Composer) -> Schema:
    """Return the JSON Schema of conf/exp/NAME.yaml.

    Raises:
        ConfigError: The files in conf/ do not compose.
    """
    comments = _comments(BASE) | _comments(SCRIPT_ROOT) | _comments(ROOT)
    defaults = composer.compose({})
    groups = {name: choices for name, choices in composer.groups().items() if name != EXPERIMENT}
    keys = {
        key: _group(key, groups[key]) if key in groups else _value(default, (key,), comments)
        for key, default in defaults.items()
        if key not in QUESTIONS
    }
    questions = {
        key: _section(
            {name: _value(value, (key, name), comments) for name, value in (defaults[key] or {}).items()}
        )
        | {"description": comments.get((key,), "")}
        for key in ("search", "screen")
    }
    axes = {
        "type": ["object", "null"],
        "description": "The axes of the sweep: a list of values for any key. `exclude` lists combinations that are not "
        "run, and `cases` maps names to values of several keys.",
    }
    script = {
        key.removeprefix(f"{SCRIPT}."): _typed(kind, tuple(key.split(".")), comments)
        for key, kind in TYPES.items()
        if key.startswith(f"{SCRIPT}.")
    }
    chosen = {
        "type": "array",
        "description": "The choices of groups, such as `- override /model: NAME`.",
        "items": {"type": ["string", "object"]},
    }
    return {
        "$schema": DRAFT,
        "title": "An experiment of cpdrun",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "defaults": chosen,
            **keys,
            "sweep": axes,
            **questions,
            SCRIPT: _section(script) | {"description": "Settings of a user's own script."},
            "exp": {"type": ["string", "null"]},
        },
    }


def _section(properties: Mapping[str, Schema]) -> Schema:
    return {"type": ["object", "null"], "properties": properties}


def _group(name: str, choices: list[str]) -> Schema:
    text = f"Settings of the {name} that `defaults` chooses: {', '.join(choices)}"
    return {"description": text, "anyOf": [{"type": ["object", "null"]}, {"enum": choices}]}


def _value(default: Any, path: tuple[str, ...], comments: Comments) -> Schema:
    """Return the schema of a key with its default."""
    if isinstance(default, Mapping) and default:
        inside = {key: _value(value, (*path, key), comments) for key, value in default.items()}
        return {"description": comments.get(path, ""), "type": "object", "properties": inside}
    if kind := TYPES.get(".".join(path)):
        return _typed(kind, path, comments) | {"default": default}
    types = _types_like(default)
    schema = {"description": comments.get(path, ""), "default": default}
    return schema | ({"anyOf": [{"type": types}, REFERENCE]} if types else {})


def _typed(kind: Any, path: tuple[str, ...], comments: Comments) -> Schema:
    """Return the schema of a key whose type is in the model. Null is allowed for values that cpdrun fills in later."""
    return {
        "description": comments.get(path, ""),
        "anyOf": [json_schema_of(kind), REFERENCE, {"type": "null"}],
    }


def _types_like(default: Any) -> list[str]:
    """Return the JSON types that may replace a default. The list is empty if the default does not determine them."""
    if isinstance(default, bool):
        return ["boolean", "null"]
    if isinstance(default, int | float):
        return ["number", "null", "string"]  # words such as auto
    if isinstance(default, list):
        return ["array", "null"]
    return []


def _comments(name: str) -> dict[tuple[str, ...], str]:
    """Return the comment next to each key in conf/NAME.yaml, including the following lines of the comment."""
    found: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    for line in (files(CONF_MODULE) / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if key := _KEY.match(line):
            indent = len(key["indent"])
            path = [(at, above) for at, above in path if at < indent] + [(indent, key["key"])]
            found[tuple(above for _, above in path)] = (key["comment"] or "").strip()
        elif path and (more := _MORE.match(line)):
            here = tuple(above for _, above in path)
            found[here] = f"{found[here]} {more['comment'].strip()}".strip()
        elif not line.strip():
            path = []
    return found
