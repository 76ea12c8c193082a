"""The command `cpdrun init --schema`, which prints the JSON Schema of an experiment's yaml for editors."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.arguments import add_config_dir, add_json
from cpdrun.commands import document_types, schema
from cpdrun.errors import OK, UserError
from cpdrun.shell.document import optional


@dataclass
class SchemaDocument:
    """A JSON Schema.

    Attributes:
        experiment: The schema of an experiment's yaml.
        document: The schema of the named kind of document.
    """

    experiment: dict[str, Any] | None = optional()
    document: dict[str, Any] | None = optional()


DOCUMENTS = {"schema": SchemaDocument}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "init --schema",
        description="Print the JSON Schema of an experiment's yaml: keys with defaults and comments, and the choices "
        "of groups. Editors with a YAML language server use it to complete and check yaml files that contain the line "
        "`# yaml-language-server: $schema=PATH`. With KIND, print the JSON Schema of a document that commands print "
        "with --json.",
    )
    parser.add_argument(
        "kind", nargs="?", metavar="KIND", help="a kind of document, such as search (docs/json.md)"
    )
    add_config_dir(parser)
    add_json(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.record import json_text

    document = SchemaDocument()
    if arguments.kind is None:
        found = document.experiment = _experiment_schema(arguments.config_dir)
    else:
        found = document.document = _document_schema(arguments.kind)
    arguments.output.set_result(document)
    if not arguments.output.as_json:
        print(json_text(found))
    return OK


def _experiment_schema(config_dir: Path | None) -> dict[str, Any]:
    from cpdrun.config.compose import Composer
    from cpdrun.config.json_schema import experiment_schema

    with Composer(config_dir) as composer:
        return experiment_schema(composer)


def _document_schema(kind: str) -> dict[str, Any]:
    types = document_types()
    if kind not in types:
        from custom_fp.suggestions import did_you_mean

        near = did_you_mean(kind, types)
        raise UserError(f"unknown kind of document {kind!r}{near}; there are: {', '.join(types)}")
    return schema(kind)
