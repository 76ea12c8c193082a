"""The command `cpdrun cancel`, which stops a sweep or a run. The runs can be resumed."""

import argparse

from cpdrun.arguments import add_json, add_names
from cpdrun.errors import OK, UserError


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    cancel = commands.add_parser("cancel", help="stop a sweep or a run; it can be resumed")
    add_names(cancel, "+", "name of a sweep or run")
    add_json(cancel)
    return cancel


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.cancel import cancel_run, cancel_sweep
    from cpdrun.record import find_sweeps_or_runs

    output = arguments.output
    found: dict[str, list] = {"sweeps": [], "runs": []}
    output.set_result(found)
    sweeps, runs = find_sweeps_or_runs(arguments.names)
    if not sweeps and not runs:
        raise UserError("name the sweep or the run to stop: cpdrun cancel NAME; cpdrun status lists them")
    for sweep in sweeps:
        asked, waiting = cancel_sweep(sweep)
        found["sweeps"].append({"sweep": str(sweep.path), "asked": asked, "withdrawn": waiting})
        queue = f", {waiting} taken out of the queue" if waiting else ""
        starting = "" if asked or waiting else "; a command that is still starting its runs stops too"
        output.print(f"{sweep.name}: {asked} running runs asked to save and stop{queue}{starting}")
    for run in runs:
        was_asked = cancel_run(run)
        found["runs"].append({"run": run.name, "asked": was_asked})
        output.print(f"{run.name}: {'asked to save and stop' if was_asked else 'is not running'}")
    return OK
