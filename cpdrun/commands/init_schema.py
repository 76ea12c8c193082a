"""The command `cpdrun init --schema`, which prints the JSON Schema of an experiment's yaml for editors."""

import argparse
from pathlib import Path

from cpdrun.arguments import add_json
from cpdrun.errors import OK

# The kind of the command's JSON document.
DOCUMENT = "schema"


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    schema = commands.add_parser(
        "init --schema",
        description="Print the JSON Schema of an experiment's yaml: keys with defaults and comments, and the choices "
        "of groups. Editors with a YAML language server use it to complete and check yaml files that contain the line "
        "`# yaml-language-server: $schema=PATH`.",
    )
    schema.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="a directory of your own yaml, searched before conf/"
    )
    add_json(schema)
    return schema


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.config.compose import Composer
    from cpdrun.config.json_schema import experiment_schema
    from cpdrun.record import json_text

    with Composer(arguments.config_dir) as composer:
        schema = experiment_schema(composer)
    arguments.output.set_result({"experiment": schema})
    if not arguments.output.as_json:
        print(json_text(schema))
    return OK
