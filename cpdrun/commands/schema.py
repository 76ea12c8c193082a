"""`cpdrun schema`: the JSON Schema of an experiment's yaml, for editors."""

import argparse
from pathlib import Path

from cpdrun.arguments import add_json
from cpdrun.errors import OK


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    schema = commands.add_parser(
        "schema",
        help="the JSON Schema of an experiment's yaml, for editors",
        description="Print the JSON Schema of an experiment's yaml: keys with their defaults and comments, choices of "
        "groups. Editors with a YAML language server complete and check by it, where the yaml has the line "
        "`# yaml-language-server: $schema=PATH`.",
    )
    schema.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="a folder of your own yaml beside conf/"
    )
    add_json(schema)
    return schema


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.config.compose import Composer
    from cpdrun.config.json_schema import experiment_schema
    from cpdrun.record import json_text

    with Composer(arguments.config_dir) as composer:
        schema = experiment_schema(composer)
    arguments.telling.tell({"experiment": schema})
    if not arguments.telling.as_json:
        print(json_text(schema))
    return OK
