"""The command `cpdrun sweep --join`, which trains the waiting runs of a sweep until none is left."""

import argparse
from typing import TYPE_CHECKING, Any

from cpdrun.arguments import add_json, add_names
from cpdrun.commands.launching import add_options, cancelled_before, may_start, options_of
from cpdrun.errors import FAILED, INTERRUPTED, OK

if TYPE_CHECKING:
    from cpdrun.launch import Session, Summary
    from cpdrun.record import SweepDir

DOCUMENTS = {"work": "cpdrun.launch.summary:WorkDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    work = commands.add_parser(
        "sweep --join",
        description="Train the waiting and stopped runs of a sweep on this machine until none is left. Any number of "
        "machines that see the folder can join a sweep. Each run is trained once, and if a machine dies, another takes "
        "its run. Ctrl-C saves and stops; the same command continues. So any scheduler works: write the runs with "
        "`cpdrun sweep exp=NAME --launcher pull --no-wait`, and let it start `cpdrun sweep --join NAME` on each "
        "machine. `cpdrun cancel NAME` stops all of them.",
    )
    add_names(work, "+", "name or folder of a sweep", completions="sweeps")
    add_options(work)
    work.add_argument("--rerun", choices=["failed"], help="also train failed runs, each once")
    add_json(work)
    return work


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.config.compose import Composer
    from cpdrun.launch import Session
    from cpdrun.launch.summary import JoinedSweep, WorkDocument
    from cpdrun.record import find_sweeps

    with Composer() as composer:
        launcher = composer.file("launcher", "local")
    code, document = OK, WorkDocument([], arguments.output.notes)
    arguments.output.set_result(document)
    with Session() as session:
        for sweep in find_sweeps(arguments.names):
            worked, summary = _work(sweep, launcher, arguments, session)
            document.sweeps.append(JoinedSweep(str(sweep.path), summary))
            if worked == INTERRUPTED:
                return INTERRUPTED
            code = code or worked
    return code


def _work(
    sweep: "SweepDir", launcher: dict[str, Any], arguments: argparse.Namespace, session: "Session"
) -> "tuple[int, Summary | None]":
    """Train the waiting runs of one sweep.

    Returns:
        The exit code, and the summary; None if no run was trained.
    """
    from cpdrun.launch import Display, axes_of, print_summary
    from cpdrun.launch.pull import Pool

    options, output = options_of(arguments), arguments.output
    before = cancelled_before(sweep, arguments)
    pool = Pool(sweep, failed=arguments.rerun == "failed")
    code, summary = OK, None
    if jobs := pool.take():
        configs = [{**job.config, "launcher": launcher} for job in jobs]
        if not may_start(session, sweep, configs, options, before, None, output):
            return INTERRUPTED, None
        display = Display(output.progress, axes_of(sweep))
        summary = session.launch(sweep, jobs, launcher, options, display, before, more=pool.take)
        print_summary(output.progress, sweep, summary)
        code = summary.exit_code
    else:
        output.print(f"{sweep.name}: nothing is left to do")
    for reason in pool.unreadable.values():
        output.note(reason, kind="error")
    return code or (FAILED if pool.unreadable else OK), summary
