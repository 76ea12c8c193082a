"""`cpdrun status`: how far a sweep is."""

import argparse

from cpdrun.arguments import add_names
from cpdrun.errors import OK


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    status = commands.add_parser("status", help="how far a sweep is")
    add_names(status, "*", "name or folder of a sweep (default: the latest)")
    status.add_argument("--watch", action="store_true", help="keep showing it until nothing runs")
    status.add_argument("--json", action="store_true", help="for programs")
    return status


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.progress.status import as_json, print_status, sweep_status
    from cpdrun.record import find_sweeps
    from cpdrun.shell.terminal import Terminal

    sweeps = find_sweeps(arguments.names)
    if arguments.json:
        print(as_json([row for sweep in sweeps for row in sweep_status(sweep)]))
        return OK
    for sweep in sweeps:
        print_status(Terminal(), sweep, watch=arguments.watch)
    return OK
