"""The command `cpdrun cancel`, which stops a sweep or a run. The runs can be resumed."""

import argparse
from dataclasses import dataclass

from cpdrun.arguments import add_json, add_names
from cpdrun.errors import OK, UserError


@dataclass
class CancelledSweep:
    """A sweep that was asked to stop.

    Attributes:
        sweep: The folder of the sweep.
        asked: The number of running runs that were asked to stop.
        withdrawn: The number of runs that were taken out of a scheduler's queue.
    """

    sweep: str
    asked: int
    withdrawn: int


@dataclass
class CancelledRun:
    """A run that was asked to stop.

    Attributes:
        run: The name of the run.
        asked: Whether the run was running or queued, so that it could be asked.
    """

    run: str
    asked: bool


@dataclass
class CancelDocument:
    """The sweeps and runs that were asked to stop."""

    sweeps: list[CancelledSweep]
    runs: list[CancelledRun]


DOCUMENTS = {"cancel": CancelDocument}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    cancel = commands.add_parser(
        "cancel",
        help="stop a sweep or a run; it can be resumed",
        description="Stop a sweep or a run. Active runs save a checkpoint and end, and waiting runs do not start. To "
        "resume them, type the command of the sweep again.",
    )
    add_names(cancel, "+", "name of a sweep or run")
    add_json(cancel)
    return cancel


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.cancel import cancel_run, cancel_sweep
    from cpdrun.record import find_sweeps_or_runs

    output = arguments.output
    document = CancelDocument([], [])
    output.set_result(document)
    sweeps, runs = find_sweeps_or_runs(arguments.names)
    if not sweeps and not runs:
        raise UserError("name the sweep or the run to stop: cpdrun cancel NAME; cpdrun status lists them")
    for sweep in sweeps:
        asked, waiting = cancel_sweep(sweep)
        document.sweeps.append(CancelledSweep(str(sweep.path), asked, waiting))
        queue = f", {waiting} taken out of the queue" if waiting else ""
        starting = "" if asked or waiting else "; a command that is still starting its runs stops too"
        runs_asked = f"{asked} running run{'' if asked == 1 else 's'}"
        output.print(f"{sweep.name}: {runs_asked} asked to save and stop{queue}{starting}")
    for run in runs:
        was_asked = cancel_run(run)
        document.runs.append(CancelledRun(run.name, was_asked))
        output.print(f"{run.name}: {'asked to save and stop' if was_asked else 'is not running'}")
    return OK
