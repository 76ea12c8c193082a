"""Options and checks of all commands that train runs."""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpdrun.arguments import count, positive
from cpdrun.errors import UserError, before_a_start

if TYPE_CHECKING:
    from pathlib import Path

    from cpdrun.launch import LaunchOptions, Session
    from cpdrun.record import RunDir, SweepDir
    from cpdrun.shell.output import Output


def add_options(parser: argparse.ArgumentParser, where: str = "") -> None:
    """Add the options of a launch.

    `where` is the part of --launcher's help text that lists the launchers other than `local`. Without it, the command
    always trains on this machine and has no option --launcher.
    """
    if where:
        parser.add_argument("--launcher", metavar="NAME", help=f"where to run: local (default), {where}")
        parser.add_argument(
            "--max-parallel", type=positive, metavar="K", help="maximum number of runs at a time on a cluster"
        )
        parser.add_argument("--fail-fast", action="store_true", help="stop as soon as one run fails")
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="maximum number of processes at a time (default: all cores)",
    )
    parser.add_argument(
        "--jobs-per-gpu", type=positive, metavar="K", help="maximum number of processes that share a GPU"
    )
    go_on = "start all runs even if the first one fails within seconds or logs no metric"
    parser.add_argument("--keep-going", action="store_true", help=go_on)
    parser.add_argument(
        "--retries", type=count, default=0, metavar="R", help="how often to retry a failed run (default: 0)"
    )


def options_of(arguments: argparse.Namespace) -> "LaunchOptions":
    from cpdrun.launch import LaunchOptions

    return LaunchOptions(
        **{key: value for key, value in vars(arguments).items() if key in LaunchOptions.__annotations__}
    )


def words_of(arguments: argparse.Namespace) -> list[str]:
    """Return the overrides, with --launcher NAME as `launcher=NAME`."""
    return [*arguments.overrides, *([f"launcher={arguments.launcher}"] if arguments.launcher else [])]


def read_metrics_again(runs: "Sequence[tuple[RunDir, Mapping[str, Any]]]", *, dry_run: bool) -> list[str]:
    """Read metrics from the stored output of scripts again if their settings changed.

    In a dry run, only count these runs. Return lines that tell the user which runs are affected.
    """
    from cpdrun.config.script import is_script

    if not runs or not is_script(runs[0][1]):
        return []
    from cpdrun.script_metrics.output import has_other_settings, read_again
    from cpdrun.script_metrics.result import NoResultError

    runs = [(run, config) for run, config in runs if has_other_settings(run, config)]
    if not runs or dry_run:
        ended = "1 run has" if len(runs) == 1 else f"{len(runs)} runs have"
        return [f"{ended} ended; metrics would be read again"] if runs else []
    missing = []
    for run, config in runs:
        try:
            read_again(run, config)
        except NoResultError as error:
            missing.append(str(error))
    done = len(runs) - len(missing)
    lines = []
    if done:
        lines.append(f"{done} run{'' if done == 1 else 's'} done; metrics read again, nothing to train")
    if missing:
        kept = "1 run keeps its" if len(missing) == 1 else f"{len(missing)} runs keep their"
        lines.append(f"{kept} former metrics: {missing[0]}")
    return lines


def cancelled_before(sweep: "SweepDir", arguments: argparse.Namespace) -> int | None:
    """Return the `cancellation` of a sweep at the time when the command was typed.

    If it differs now, the sweep was canceled since then, and the command must stop. A command takes seconds
    to start and only then knows the sweep's folder, so it cannot ask earlier.
    """
    from cpdrun.record import cancellation_before

    return cancellation_before(sweep, time.monotonic() - arguments.began)


def may_start(
    session: "Session",
    sweep: "SweepDir",
    configs: Sequence[Mapping[str, Any]],
    options: "LaunchOptions",
    cancelled_before: int | None,
    config_dir: "Path | None",
    output: "Output",
) -> bool:
    """Check the runs, print notes about them, and return True if they may start.

    They may not if the sweep was canceled since the command was typed, which means that its `cancellation` is
    no longer `cancelled_before`.

    Raises:
        UserError: The runs cannot be trained. The message has a line per problem.
    """
    from cpdrun.config.dry_run import missing_folders, smaller_experiment

    if _was_cancelled(sweep, cancelled_before, output):
        return False
    output.announce("Importing PyTorch and checking the runs ...")
    with before_a_start():
        problems, notes = session.preflight(configs, options)
        if problems:
            if any(missing_folders(config) for config in configs):
                problems[-1] += f". Without it: {smaller_experiment(configs[0].get('exp'), config_dir)}"
            raise UserError(*problems)
    for note in notes:
        output.note(note)
    output.announce(f"Starting {len(configs)} run{'' if len(configs) == 1 else 's'} ...")
    return not _was_cancelled(sweep, cancelled_before, output)


def _was_cancelled(sweep: "SweepDir", cancelled_before: int | None, output: "Output") -> bool:
    from cpdrun.record import cancellation

    was_cancelled = cancellation(sweep) != cancelled_before
    if was_cancelled:
        output.print("Canceled from another shell. Nothing was started.")
    return was_cancelled
