"""What the commands that train runs have in common: options, and the look at runs before they start."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpdrun.arguments import count, positive
from cpdrun.errors import UserError, before_a_start

if TYPE_CHECKING:
    from pathlib import Path

    from cpdrun.launch import LaunchOptions, Session
    from cpdrun.record import SweepDir
    from cpdrun.shell.telling import Telling


def add_options(parser: argparse.ArgumentParser, where: str = "") -> None:
    """Each is a field of LaunchOptions. where: what is said of --launcher; without, runs are trained here."""
    if where:
        parser.add_argument("--launcher", metavar="NAME", help=f"where to run: local (default), {where}")
        parser.add_argument("--max-parallel", type=positive, metavar="K", help="runs at once on a cluster")
        parser.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    parser.add_argument("--jobs", type=positive, metavar="N", help="processes at once (default: all cores)")
    parser.add_argument("--jobs-per-gpu", type=positive, metavar="K", help="processes that share a GPU")
    parser.add_argument("--retries", type=count, default=0, metavar="R", help="tries again after a failure")


def options_of(arguments: argparse.Namespace) -> "LaunchOptions":
    from cpdrun.launch import LaunchOptions

    return LaunchOptions(
        **{key: value for key, value in vars(arguments).items() if key in LaunchOptions.__annotations__}
    )


def words_of(arguments: argparse.Namespace) -> list[str]:
    """What was typed, --launcher as the word that it stands for."""
    return [*arguments.overrides, *([f"launcher={arguments.launcher}"] if arguments.launcher else [])]


def may_start(
    session: "Session",
    sweep: "SweepDir",
    configs: Sequence[Mapping[str, Any]],
    options: "LaunchOptions",
    cancelled_before: int | None,
    config_dir: "Path | None",
    telling: "Telling",
) -> bool:
    """Whether runs of these configs may start; what their users should know is said. False where `sweep` was cancelled
    meanwhile. Raises UserError for what keeps them from being trained."""
    from cpdrun.record import cancellation
    from cpdrun.sweep.needs import missing_folders, twin

    with before_a_start():
        problems, notes = session.preflight(configs, options)
        if problems:
            if any(missing_folders(config) for config in configs):
                problems[-1] += f". Without it: {twin(configs[0].get('exp'), config_dir)}"
            raise UserError(*problems)
    for note in notes:
        telling.note(note)
    if cancellation(sweep) != cancelled_before:
        telling.say("Cancelled from another shell. Nothing was started.")
        return False
    return True
