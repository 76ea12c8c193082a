"""The command `cpdrun status`, which shows the progress of sweeps."""

import argparse

from cpdrun.arguments import add_json, add_names
from cpdrun.errors import OK, UserError

DOCUMENTS = {"status": "cpdrun.launch.progress.status:StatusDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    status = commands.add_parser(
        "status",
        help="show the progress of a sweep, run by run",
        description="Show how many runs of a sweep are done, running, waiting or failed, and how far each run is.",
    )
    add_names(status, "*", "name or folder of a sweep (default: the latest)", completions="sweeps")
    status.add_argument("--watch", action="store_true", help="keep showing the progress until nothing runs")
    add_json(status)
    return status


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.progress.status import (
        StatusDocument,
        print_status,
        sweep_document,
        sweep_status,
        watch_status,
    )
    from cpdrun.record import find_sweeps

    output = arguments.output
    if arguments.watch and arguments.json:
        raise UserError("--json prints one document and --watch keeps printing, so type only one of them")
    sweeps = find_sweeps(arguments.names)
    if arguments.watch:
        for sweep in sweeps:
            watch_status(output.console, sweep)
        return OK
    snapshots = [sweep_status(sweep) for sweep in sweeps]
    output.set_result(StatusDocument([sweep_document(snapshot) for snapshot in snapshots]))
    if not output.as_json:
        for snapshot in snapshots:
            print_status(output.console, snapshot)
    return OK
