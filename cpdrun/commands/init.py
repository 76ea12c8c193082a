"""`cpdrun init`: a project of one's own that runs."""

import argparse
from pathlib import Path

from cpdrun.arguments import add_json
from cpdrun.errors import OK


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    init = commands.add_parser(
        "init",
        help="write a project of one's own: a model, a dataset, a task and an experiment that runs",
        description="Write a project of one's own into a new folder: a model, a dataset and a task, each a class in a "
        "file, the yaml that names them, and an experiment, which runs as it stands. Change what is not yours.",
    )
    init.add_argument("folder", type=Path, metavar="DIR", help="where to; made, must not hold anything")
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
    arguments.telling.tell({"folder": str(arguments.folder), "files": [str(file) for file in files]})
    for file in files:
        arguments.telling.say(str(file))
    arguments.telling.say(
        f"Now: cd {arguments.folder} && cpdrun sweep --config-dir conf exp=mine, then cpdrun report"
    )
    return OK
