"""The documents that SKILL.md shows have the keys and the values that the commands print."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from documented_lines import REPOSITORY, blocks, commands

from cpdrun.cli import main
from cpdrun.commands import schema

TEXT = (REPOSITORY / "SKILL.md").read_text(encoding="utf-8")
DOCUMENTS = [json.loads("\n".join(lines)) for language, lines in blocks(TEXT) if language == "json"]


def without_required(part: Any) -> Any:
    """Return a JSON Schema that also accepts documents from which keys were left out."""
    if isinstance(part, dict):
        return {key: without_required(value) for key, value in part.items() if key != "required"}
    return [without_required(value) for value in part] if isinstance(part, list) else part


def keys(part: Any, name: str | None = None) -> Iterator[str]:
    """Yield the keys of all objects in `part`, or of its objects that are called `name`."""
    if isinstance(part, dict):
        yield from part if name is None else part.get(name, {})
        for value in part.values():
            yield from keys(value, name)
    elif isinstance(part, list):
        for value in part:
            yield from keys(value, name)


def assert_contains(found: Any, shown: Any) -> None:
    """Check that `found` has every key of `shown`, with the same value up to the rounding to three digits."""
    if isinstance(shown, dict):
        for key, value in shown.items():
            assert_contains(found[key], value)
    elif isinstance(shown, list):
        for one, other in zip(found, shown, strict=True):
            assert_contains(one, other)
    elif isinstance(shown, float):
        assert found == pytest.approx(
            shown, rel=5e-3
        )  # the largest relative error of three significant digits
    else:
        assert found == shown


def test_the_front_matter_names_and_describes_the_skill():
    front = yaml.safe_load(TEXT.split("---\n")[1])
    assert front["name"] == "cpdrun" and 100 < len(front["description"]) <= 1024


@pytest.mark.parametrize("shown", DOCUMENTS, ids=lambda shown: shown["schema"])
def test_shown_documents_have_the_keys_and_types_of_the_schema(shown):
    full = schema(shown["schema"].removeprefix("cpdrun.").partition("/")[0])
    jsonschema.validate(shown, without_required(full))
    assert set(keys(shown)) <= set(keys(full, "properties"))


def test_the_shown_verdict_of_judge_is_that_of_the_command(capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    (line,) = (
        line for block in commands("SKILL.md") for line in block if line.startswith("cpdrun judge docs/")
    )
    (shown,) = (document for document in DOCUMENTS if document["schema"] == "cpdrun.judge/1")
    assert main(line.split()[1:]) == 0
    assert_contains(json.loads(capsys.readouterr().out), shown)
