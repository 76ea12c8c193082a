"""`cpdrun cancel`: stop a sweep or a run; it can be resumed."""

import argparse

from cpdrun.arguments import add_names
from cpdrun.errors import OK
from cpdrun.shell.visible import visible


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    cancel = commands.add_parser("cancel", help="stop a sweep or a run; it can be resumed")
    add_names(cancel, "+", "name of a sweep or run")
    return cancel


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.cancel import cancel_run, cancel_sweep
    from cpdrun.record import find_sweeps_or_runs

    sweeps, runs = find_sweeps_or_runs(arguments.names)
    for sweep in sweeps:
        asked, waiting = cancel_sweep(sweep)
        queue = f", {waiting} taken out of the queue" if waiting else ""
        print(f"{visible(sweep.name)}: {asked} running runs asked to save and stop{queue}")
    for run in runs:
        print(f"{visible(run.name)}: {'asked to save and stop' if cancel_run(run) else 'is not running'}")
    return OK
