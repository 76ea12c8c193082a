"""`cpdrun sweep`: train every combination of an experiment's axes."""

import argparse
import sys
from typing import TYPE_CHECKING

from cpdrun.arguments import add_overrides, count, positive
from cpdrun.errors import FAILED, INTERRUPTED, OK, UserError, before_a_start, writing

if TYPE_CHECKING:
    from pathlib import Path

    from cpdrun.launch import LaunchOptions, Session
    from cpdrun.sweep import Plan, PlannedRun


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    sweep = commands.add_parser(
        "sweep",
        help="train every combination of an experiment's axes",
        description="Train every combination of an experiment's axes. Finished runs are skipped: "
        "a sweep that was stopped goes on when its command is typed again.",
        epilog="Example: cpdrun sweep exp=digits_bits format=e4m3,e3m0 seed=0",
    )
    add_overrides(sweep, "exp=NAME, key=value, or key=a,b,c for an axis")
    sweep.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")
    sweep.add_argument("--json", action="store_true", help="with --dry-run: the same for programs")
    where = "where to run: local (default), slurm, or pull, which leaves the runs to `cpdrun work`"
    sweep.add_argument("--launcher", metavar="NAME", help=where)
    sweep.add_argument("--jobs", type=positive, metavar="N", help="processes at once (default: all cores)")
    sweep.add_argument("--jobs-per-gpu", type=positive, metavar="K", help="processes that share a GPU")
    sweep.add_argument("--max-parallel", type=positive, metavar="K", help="runs at once on a cluster")
    sweep.add_argument("--retries", type=count, default=0, metavar="R", help="tries again after a failure")
    rerun = "only failed runs; also those of other code or data than now; or all from the start"
    sweep.add_argument("--rerun", choices=["failed", "changed", "all"], help=rerun)
    sweep.add_argument("--fail-fast", action="store_true", help="stop the sweep at the first failure")
    sweep.add_argument(
        "--no-wait", action="store_true", help="hand the runs to the cluster, or to workers, and leave"
    )
    return sweep


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch import LaunchOptions, Session

    options = LaunchOptions(
        jobs=arguments.jobs,
        jobs_per_gpu=arguments.jobs_per_gpu,
        max_parallel=arguments.max_parallel,
        retries=arguments.retries,
        fail_fast=arguments.fail_fast,
        wait=not arguments.no_wait,
    )
    with Session() as session:
        return _sweep(arguments, options, session)


def _sweep(arguments: argparse.Namespace, options: "LaunchOptions", session: "Session") -> int:
    from cpdrun.launch.executors import own_class
    from cpdrun.record import State
    from cpdrun.record.fingerprint import of_other_code
    from cpdrun.sweep import listed, plan
    from cpdrun.sweep.idle import idle_settings
    from cpdrun.sweep.standing import standing

    with before_a_start():
        if arguments.json and not arguments.dry_run:
            raise UserError("--json is for --dry-run; of a sweep that runs, `cpdrun status --json` tells")
        if not arguments.overrides:
            raise UserError(_which_experiment(arguments.config_dir))
        if not arguments.dry_run:
            session.warm_up()  # importing torch takes longer than planning
        launcher = [f"launcher={arguments.launcher}"] if arguments.launcher else []
        words, imports = [*arguments.overrides, *launcher], not arguments.dry_run
        sweep = plan(words, arguments.config_dir, imports=imports, on_many=_say_how_many)
        listed(sweep.directory)

    found = standing(sweep)
    not_done = set(State) - {State.DONE}
    wanted = {"failed": {State.FAILED}, "all": set(State), "changed": not_done, None: not_done}
    again = set(found.changed) if arguments.rerun == "changed" else set()
    to_run = [r for r in sweep.runs if found.states.get(r.name) in wanted[arguments.rerun] or r.name in again]
    if arguments.json:
        from cpdrun.sweep.dry_run import as_json

        print(as_json(sweep, found, to_run, options))
        return OK
    print(f"{sweep.describe()}: {found.count(State.DONE)} done, {len(to_run)} to run", flush=True)
    if found.changed and not arguments.rerun:
        print(of_other_code(found.changed), flush=True)
    notes = [*sweep.left_out, *idle_settings(sweep.given, [run.config for run in sweep.runs])]
    executor = own_class(to_run[0].config["launcher"]) if to_run else None
    if executor is not None:
        notes += executor.idle(options)
    for note in [*found.notes(here=executor is not None and executor.here), *notes]:
        print(f"note: {note}", file=sys.stderr)
    odd = {
        name: text for name, text in found.odd.items() if arguments.rerun != "all" or name not in found.states
    }
    for text in odd.values():
        print(f"error: {text}", file=sys.stderr)
    if arguments.dry_run:
        from cpdrun.sweep.dry_run import print_dry_run

        print_dry_run(sweep, found, to_run, options, arguments.config_dir)
        return OK
    if not to_run:
        print(f"Nothing to do. For the report: cpdrun report {sweep.directory.path}")
        return FAILED if odd else OK
    anew = {r.name for r in to_run} if arguments.rerun == "all" else again
    return _launch(session, sweep, to_run, anew, options, arguments.config_dir) or (FAILED if odd else OK)


def _launch(
    session: "Session",
    sweep: "Plan",
    to_run: "list[PlannedRun]",
    anew: set[str],
    options: "LaunchOptions",
    config_dir: "Path | None",
) -> int:
    """Look whether `to_run` can be trained, then train them, those of `anew` from the start."""
    from cpdrun.launch import Display, Job, axes_of, print_summary
    from cpdrun.record import cancellation, forget
    from cpdrun.shell.terminal import Terminal
    from cpdrun.sweep import write_manifest
    from cpdrun.sweep.needs import missing_folders, twin

    cancelled_before = cancellation(sweep.directory)
    jobs = [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in to_run]
    with before_a_start():
        problems, notes = session.preflight([run.config for run in to_run], options)
        if problems:
            if any(missing_folders(run.config) for run in to_run):
                problems[-1] += f". Without it: {twin(to_run[0].config['exp'], config_dir)}"
            raise UserError(*problems)
        for note in notes:
            print(f"note: {note}", flush=True)
        if cancellation(sweep.directory) != cancelled_before:
            print("Cancelled from another shell. Nothing was started.")
            return INTERRUPTED
        with writing(sweep.directory.path):
            write_manifest(sweep)
            for job in jobs:
                if job.run.name in anew:
                    forget(job.run)
    console, launcher = Terminal(), to_run[0].config["launcher"]
    display = Display(console, axes_of(sweep.directory))
    with writing(sweep.directory.path):  # a full disk, as a rule
        summary = session.launch(sweep.directory, jobs, launcher, options, display, cancelled_before)
    print_summary(console, summary)
    if summary.exit_code == OK and options.wait:
        print(f"For the report: cpdrun report {sweep.directory.path}")
    return summary.exit_code


def _which_experiment(config_dir: "Path | None") -> str:
    from cpdrun.config.compose import Composer

    with Composer(config_dir) as composer:
        names = ", ".join(composer.groups()["exp"])
    return f"say what to run: cpdrun sweep exp=NAME, or key=value for one run of the defaults; experiments: {names}"


def _say_how_many(runs: int) -> None:
    print(f"planning {runs:,} runs ...", file=sys.stderr, flush=True)
