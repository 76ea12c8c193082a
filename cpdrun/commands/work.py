"""`cpdrun work`: take the runs of a sweep that wait, until none is left."""

import argparse
import sys

from cpdrun.arguments import complete_by, count, positive
from cpdrun.errors import FAILED, OK, UserError, before_a_start
from cpdrun.shell.visible import visible_line


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    work = commands.add_parser(
        "work",
        help="take the waiting runs of a sweep, here, until none is left",
        description="Take the runs of a sweep that wait or were stopped, and train them on this machine, until none is "
        "left. Any number of workers, on any machines that see the folder, share a sweep: each run is trained once; "
        "one whose worker is killed is taken by another. Ctrl-C saves and stops; typed again it goes on. So any "
        "scheduler serves: write the runs with `cpdrun sweep exp=NAME --launcher pull --no-wait`, and have it run "
        "`cpdrun work NAME` as often as it has machines. `cpdrun cancel NAME` stops all workers.",
    )
    text = "name or folder of a sweep; results_dir=PATH says where names lie"
    complete_by("sweeps", work.add_argument("names", nargs="+", metavar="SWEEP", help=text))
    work.add_argument("--jobs", type=positive, metavar="N", help="processes at once (default: all cores)")
    work.add_argument("--jobs-per-gpu", type=positive, metavar="K", help="processes that share a GPU")
    work.add_argument("--retries", type=count, default=0, metavar="R", help="tries again after a failure")
    work.add_argument("--rerun", choices=["failed"], help="take failed runs too, each once")
    return work


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.config.compose import Composer
    from cpdrun.launch import Display, LaunchOptions, Session, axes_of, print_summary
    from cpdrun.launch.pull import Pool
    from cpdrun.record import cancellation, find_sweeps
    from cpdrun.shell.terminal import Terminal

    options = LaunchOptions(
        jobs=arguments.jobs, jobs_per_gpu=arguments.jobs_per_gpu, retries=arguments.retries
    )
    with Composer() as composer:
        launcher = composer.compose({"launcher": "local"})["launcher"]
    code, console = OK, Terminal()
    with Session() as session:
        for sweep in find_sweeps(arguments.names):
            cancelled_before = cancellation(sweep)
            pool = Pool(sweep, failed=arguments.rerun == "failed")
            jobs = pool.take()
            for reason in pool.unreadable.values():
                print(f"error: {visible_line(reason)}", file=sys.stderr)
            code = code or (FAILED if pool.unreadable else OK)
            if not jobs:
                print(f"{visible_line(sweep.name)}: nothing is left to do")
                continue
            with before_a_start():
                configs = [{**job.config, "launcher": launcher} for job in jobs]
                problems, notes = session.preflight(configs, options)
                if problems:
                    raise UserError(*problems)
            for note in notes:
                print(f"note: {note}", flush=True)
            display = Display(console, axes_of(sweep))
            summary = session.launch(
                sweep, jobs, launcher, options, display, cancelled_before, more=pool.take
            )
            print_summary(console, summary)
            code = code or summary.exit_code
    return code
