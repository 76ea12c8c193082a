"""The command line: `cpdrun sweep`, `cpdrun report`. Dispatch only; what is imported here costs every call.

Exit codes: 0 all done, 1 some run failed, 2 usage or configuration error, 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cpdrun import __version__

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cpdrun",
        description="How many bits does this training run need?",
        epilog="Start with: cpdrun sweep exp=digits_bits, then cpdrun report",
    )
    parser.add_argument("--version", action="version", version=f"cpdrun {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    sweep = commands.add_parser(
        "sweep",
        help="train every combination of an experiment's axes",
        description="Train every combination of an experiment's axes. Finished runs are skipped: "
        "a sweep that was stopped goes on when its command is typed again.",
        epilog="Example: cpdrun sweep exp=digits_bits format=e4m3,e3m0 seed=0",
    )
    sweep.add_argument(
        "overrides", nargs="*", metavar="key=value", help="exp=NAME, key=value, or key=a,b,c for an axis"
    )
    sweep.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")
    sweep.add_argument("--jobs", type=_positive, metavar="N", help="cores to use at once (default: all)")
    sweep.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own beside conf/")
    sweep.set_defaults(command=_sweep)

    report = commands.add_parser(
        "report",
        help="tables and plots of accuracy against bits",
        description="Tables and plots of accuracy against bits, from the runs of one or more sweeps.",
    )
    report.add_argument(
        "sweeps",
        nargs="*",
        metavar="SWEEP",
        help="name or folder of a sweep (default: the latest); results_dir=PATH says where names lie",
    )
    report.add_argument("--metric", default="test_accuracy", help="what to report (default: test_accuracy)")
    report.add_argument("--format", default="md,csv", metavar="F,F", help="kinds of table (default: md,csv)")
    report.add_argument("--ci", type=float, default=95, help="confidence level of the intervals, per cent")
    report.set_defaults(command=_report)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)


def _sweep(arguments: argparse.Namespace) -> int:
    from cpdrun.config import ConfigError
    from cpdrun.record import State, state_of
    from cpdrun.sweep import plan, write_manifest

    try:
        sweep = plan(arguments.overrides, arguments.config_dir)
    except ConfigError as error:
        return _usage_error(error)

    states = {run.name: state_of(sweep.directory.run(run.name)) for run in sweep.runs}
    to_run = [run for run in sweep.runs if states[run.name] is not State.DONE]
    done = len(sweep.runs) - len(to_run)
    print(f"{sweep.describe()}: {done} done, {len(to_run)} to run", flush=True)
    if arguments.dry_run:
        return OK
    if not to_run:
        print(f"Nothing to do. For the report: cpdrun report {sweep.directory.path}")
        return OK

    from rich.console import Console

    from cpdrun.launch import Job, LaunchError, LaunchOptions, launch, preflight

    try:
        problems = preflight([run.config for run in to_run])
        if problems:
            return _usage_error(*problems)
        write_manifest(sweep)
        jobs = [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in to_run]
        options = LaunchOptions(jobs=arguments.jobs)
        summary = launch(
            sweep.directory, jobs, to_run[0].config["launcher"], options, Console(highlight=False)
        )
    except LaunchError as error:
        return _usage_error(error)
    except OSError as error:
        return _usage_error(
            f"results_dir: cannot write {error.filename or sweep.directory.path}: {error.strerror}"
        )
    return summary.exit_code


def _report(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from cpdrun.record import NoSweepError, find_sweeps
    from cpdrun.report import ReportError, write_report

    try:
        write_report(
            find_sweeps(arguments.sweeps),
            metric=arguments.metric,
            formats=tuple(arguments.format.split(",")),
            ci=arguments.ci,
            console=Console(highlight=False),
        )
    except NoSweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return OK


def _usage_error(*problems: object) -> int:
    lines = [f"error: {str(problem).rstrip('.')}." for problem in problems]
    print("\n".join(lines) + " Nothing was started.", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
