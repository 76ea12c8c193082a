"""The command `cpdrun init`, which writes a starter project."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from cpdrun.arguments import add_json, add_mode
from cpdrun.errors import OK


@dataclass
class InitDocument:
    """A starter project.

    Attributes:
        folder: The folder of the project.
        files: The paths of its files.
    """

    folder: Path
    files: list[Path]


DOCUMENTS = {"init": InitDocument}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    init = commands.add_parser(
        "init",
        help="write a starter project for your own model and data",
        description="Write a starter project into a new folder: a model, a dataset and a task (one class in one file "
        "each), the yaml that names them, and an experiment that runs unchanged. Replace the parts with your own.",
    )
    init.add_argument("folder", type=Path, metavar="DIR", help="the folder to write; it must be new or empty")
    add_mode(init, "--schema", "print the JSON Schema of an experiment, or of a document")
    add_json(init)
    return init


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.config.compose import Composer
    from cpdrun.config.json_schema import experiment_schema
    from cpdrun.record import json_text
    from cpdrun.starter import write

    with Composer() as composer:
        schema = json_text(experiment_schema(composer))
    files = write(arguments.folder, schema)
    arguments.output.set_result(InitDocument(arguments.folder, files))
    for file in files:
        arguments.output.print(str(file))
    arguments.output.print(
        f"Now: cd {arguments.folder} && cpdrun sweep --config-dir conf exp=mine, then cpdrun report"
    )
    return OK
