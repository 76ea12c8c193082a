"""`cpdrun sweep`: train every combination of an experiment's axes."""

import argparse
import sys
from typing import TYPE_CHECKING

from cpdrun.arguments import add_overrides
from cpdrun.commands.launching import add_options, may_start, options_of, words_of
from cpdrun.errors import FAILED, INTERRUPTED, OK, UserError, before_a_start, writing

if TYPE_CHECKING:
    from pathlib import Path

    from cpdrun.launch import LaunchOptions, Session
    from cpdrun.sweep import Plan, PlannedRun
    from cpdrun.sweep.standing import Standing


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
    add_options(sweep, "slurm, or pull, which leaves the runs to `cpdrun work`")
    rerun = "only failed runs; also those of other code or data than now; or all from the start"
    sweep.add_argument("--rerun", choices=["failed", "changed", "all"], help=rerun)
    leave = "hand the runs to the cluster, or to workers, and leave"
    sweep.add_argument("--no-wait", action="store_false", dest="wait", help=leave)
    return sweep


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch import Session

    with Session() as session:
        return _sweep(arguments, session)


def _sweep(arguments: argparse.Namespace, session: "Session") -> int:
    from cpdrun.record import State
    from cpdrun.record.fingerprint import of_other_code
    from cpdrun.sweep import listed, plan, write_manifest
    from cpdrun.sweep.dry_run import as_json, print_dry_run
    from cpdrun.sweep.standing import standing

    options = options_of(arguments)
    with before_a_start():
        if arguments.json and not arguments.dry_run:
            raise UserError("--json is for --dry-run; of a sweep that runs, `cpdrun status --json` tells")
        if not arguments.overrides:
            raise UserError(_which_experiment(arguments.config_dir))
        if not arguments.dry_run:
            session.warm_up()  # importing torch takes longer than planning
        words, imports = words_of(arguments), not arguments.dry_run
        sweep = plan(words, arguments.config_dir, imports=imports, on_many=_say_how_many)
        listed(sweep.directory)

    found = standing(sweep)
    not_done = set(State) - {State.DONE}
    wanted = {"failed": {State.FAILED}, "all": set(State), "changed": not_done, None: not_done}
    again = set(found.changed) if arguments.rerun == "changed" else set()
    to_run = [r for r in sweep.runs if found.states.get(r.name) in wanted[arguments.rerun] or r.name in again]
    if arguments.json:
        print(as_json(sweep, found, to_run, options))
        return OK
    print(f"{sweep.describe()}: {found.count(State.DONE)} done, {len(to_run)} to run", flush=True)
    if found.changed and not arguments.rerun:
        print(of_other_code(found.changed), flush=True)
    for note in _notes(sweep, found, to_run, options):
        print(f"note: {note}", file=sys.stderr)
    odd = [text for name, text in found.odd.items() if arguments.rerun != "all" or name not in found.states]
    for text in odd:
        print(f"error: {text}", file=sys.stderr)
    if arguments.dry_run:
        print_dry_run(sweep, found, to_run, options, arguments.config_dir)
        return OK
    if not to_run:
        if sweep.question:
            with writing(sweep.directory.path):
                write_manifest(sweep)
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
    from cpdrun.config.script import is_script
    from cpdrun.launch import Display, Job, axes_of, print_summary
    from cpdrun.record import cancellation, forget
    from cpdrun.report.read.collect import collect
    from cpdrun.report.read.runs.ignored import ignored
    from cpdrun.shell.terminal import Terminal
    from cpdrun.sweep import write_manifest

    cancelled_before = cancellation(sweep.directory)
    jobs = [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in to_run]
    configs = [run.config for run in to_run]
    if not may_start(session, sweep.directory, configs, options, cancelled_before, config_dir):
        return INTERRUPTED
    with before_a_start(), writing(sweep.directory.path):
        write_manifest(sweep)
        for job in jobs:
            if job.run.name in anew:
                forget(job.run)
    console, launcher = Terminal(), to_run[0].config["launcher"]
    display = Display(console, axes_of(sweep.directory))
    with writing(sweep.directory.path):  # a full disk, as a rule
        summary = session.launch(sweep.directory, jobs, launcher, options, display, cancelled_before)
    print_summary(console, summary)
    if options.wait and is_script(configs[0]):
        for line in ignored(collect([sweep.directory])):
            print(f"note: {line}", file=sys.stderr)
    if summary.exit_code == OK and options.wait:
        print(f"For the report: cpdrun report {sweep.directory.path}")
    return summary.exit_code


def _notes(
    sweep: "Plan", found: "Standing", to_run: "list[PlannedRun]", options: "LaunchOptions"
) -> list[str]:
    """What a user should know before anything starts."""
    from cpdrun.launch.executors import own_class
    from cpdrun.sweep.idle import idle_settings

    executor = own_class(to_run[0].config["launcher"]) if to_run else None
    of_launcher = [] if executor is None else executor.idle(options)
    here = executor is not None and executor.here
    idle = idle_settings(sweep.given, [run.config for run in sweep.runs])
    return [*found.notes(here=here), *sweep.left_out, *idle, *of_launcher]


def _which_experiment(config_dir: "Path | None") -> str:
    from cpdrun.config.compose import Composer

    with Composer(config_dir) as composer:
        names = ", ".join(composer.groups()["exp"])
    return f"say what to run: cpdrun sweep exp=NAME, or key=value for one run of the defaults; experiments: {names}"


def _say_how_many(runs: int) -> None:
    print(f"planning {runs:,} runs ...", file=sys.stderr, flush=True)
