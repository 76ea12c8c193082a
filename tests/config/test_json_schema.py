"""The JSON Schema for editors accepts our experiments, rejects mistakes, and has the comments of conf/."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from cpdrun.cli import main
from cpdrun.config.compose import Composer
from cpdrun.config.json_schema import experiment_schema

EXPERIMENTS = sorted((Path(__file__).parents[2] / "conf/exp").glob("*.yaml"))


@pytest.fixture(scope="module")
def validator():
    with Composer() as composer:
        schema = experiment_schema(composer)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_all_experiments_match_the_schema(path, validator):
    validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "slip",
    [
        {"epoch": 3},
        {"epochs": [3]},
        {"epochs": -1},
        {"device": "gpu"},
        {"checkpoint": {"every_epochs": 0}},
        {"script": {"value": "bst"}},
        {"defaults": "model"},
        {"sweep": ["format"]},
    ],
)
def test_mistakes_do_not_match_the_schema(slip, validator):
    assert list(validator.iter_errors(slip))


def test_a_reference_may_replace_a_value(validator):
    validator.validate({"epochs": "${optim.epochs}", "label_smoothing": "${x}"})


def test_the_schema_has_the_comments_and_the_choices(capsys):
    assert main(["init", "--schema"]) == 0
    known = json.loads(capsys.readouterr().out)["properties"]
    assert known["epochs"]["description"].startswith("passes over the training set")
    assert known["epochs"]["default"] == 15
    assert (
        "of guessing to that of a perfect model" in known["give_up_after"]["description"]
    )  # of its second line
    assert "glob patterns" in known["full_precision"]["properties"]["layers"]["description"]
    assert "digits" in known["data"]["anyOf"][1]["enum"]
    assert "tolerance" in known["search"]["properties"]
