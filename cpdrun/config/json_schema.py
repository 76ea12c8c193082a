"""What an experiment's yaml may hold, as a JSON Schema (draft 2020-12), for editors that complete and check by one.

Everything is read off conf/: keys and their defaults from what is composed, what a key is for from the comment beside
it, choices from the files of a group. It is looser than `cpdrun sweep --dry-run`, which has the last word.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from cpdrun.config.compose import BASE, CONF_MODULE, EXPERIMENT, ROOT, Composer

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE = {"type": "string", "pattern": r"\$\{.+\}"}  # to another key, which stands in for any value
OWN_KEYS = ("sweep", "search", "screen")  # sections that say what is asked, whose keys are other keys, too
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z_]\w*):(?P<value>[^#]*)(?:#(?P<comment>.*))?$")
_MORE = re.compile(r"^ *#(?P<comment>.*)$")


def experiment_schema(composer: Composer) -> Schema:
    """Of conf/exp/NAME.yaml. Raises ConfigError where conf/ does not compose."""
    comments = _comments(BASE) | _comments(ROOT)
    defaults = composer.compose({})
    groups = {name: choices for name, choices in composer.groups().items() if name != EXPERIMENT}
    keys = {
        key: _group(key, groups[key]) if key in groups else _value(default, (key,), comments)
        for key, default in defaults.items()
        if key not in OWN_KEYS
    }
    asked = {
        key: {
            "type": ["object", "null"],
            "description": comments.get((key,), ""),
            "properties": _properties(defaults, key, comments),
        }
        for key in OWN_KEYS
    }
    asked["sweep"] = {
        "type": ["object", "null"],
        "description": "axes: a list of values for any key; `exclude`: combinations that are not run; `cases`: by name "
        "keys that go together",
    }
    chosen = {
        "type": "array",
        "description": "choices of groups: - override /model: NAME",
        "items": {"type": ["string", "object"]},
    }
    return {
        "$schema": DRAFT,
        "title": "An experiment of cpdrun",
        "type": "object",
        "additionalProperties": False,
        "properties": {"defaults": chosen, **keys, **asked, "exp": {"type": ["string", "null"]}},
    }


def _properties(
    defaults: Mapping[str, Any], key: str, comments: Mapping[tuple[str, ...], str]
) -> dict[str, Schema]:
    section = defaults.get(key) or {}
    return {name: _value(value, (key, name), comments) for name, value in section.items()}


def _group(name: str, choices: list[str]) -> Schema:
    """In an experiment: settings of what is chosen, a section; what is chosen stands under `defaults`."""
    said = f"settings of the {name} that is chosen under `defaults`: {', '.join(choices)}"
    return {"description": said, "anyOf": [{"type": ["object", "null"]}, {"enum": choices}]}


def _value(default: Any, path: tuple[str, ...], comments: Mapping[tuple[str, ...], str]) -> Schema:
    schema: Schema = {"description": comments.get(path, "")}
    if isinstance(default, Mapping) and default:
        inside = {key: _value(value, (*path, key), comments) for key, value in default.items()}
        return schema | {"type": "object", "properties": inside}
    kinds = _kinds(default)
    return schema | {"default": default} | ({"anyOf": [{"type": kinds}, REFERENCE]} if kinds else {})


def _kinds(default: Any) -> list[str]:
    """The types that stand in for a default; none where it does not tell: a null, or a reference."""
    if isinstance(default, bool):
        return ["boolean", "null"]
    if isinstance(default, int | float):
        return ["number", "null", "string"]  # auto and its like
    if isinstance(default, list):
        return ["array", "null"]
    return []


def _comments(name: str) -> dict[tuple[str, ...], str]:
    """By key what the comment beside it in conf/NAME.yaml says, further lines of it included."""
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
