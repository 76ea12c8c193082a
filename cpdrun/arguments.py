"""What may be typed: sub-commands, their options, and how the shell completes them."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path


def read(argv: Sequence[str] | None) -> argparse.Namespace:
    """The name of a `command` and what was typed for it. Exits with 2, and a usage line, on what it cannot read."""
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    return _with_words_after_options(parser, *parser.parse_known_args(argv))


def _with_words_after_options(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, rest: list[str]
) -> argparse.Namespace:
    """argparse takes a command's words together, before its options or after them; people type both."""
    words = next((vars(arguments)[name] for name in ("overrides", "names") if name in arguments), None)
    if rest and (words is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        words += rest
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cpdrun",
        description="How many bits does this training run need?",
        epilog="Start with: cpdrun sweep exp=digits_bits, then cpdrun report",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say which cpdrun this is, and stop")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_sweep(commands)
    _add_report(commands)
    _add_watching(commands)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import cpdrun

        print(f"cpdrun {cpdrun.__version__}")
        parser.exit()


def _add_sweep(commands: argparse._SubParsersAction) -> None:
    sweep = commands.add_parser(
        "sweep",
        help="train every combination of an experiment's axes",
        description="Train every combination of an experiment's axes. Finished runs are skipped: "
        "a sweep that was stopped goes on when its command is typed again.",
        epilog="Example: cpdrun sweep exp=digits_bits format=e4m3,e3m0 seed=0",
    )
    _complete_by(
        "overrides",
        sweep.add_argument(
            "overrides", nargs="*", metavar="key=value", help="exp=NAME, key=value, or key=a,b,c for an axis"
        ),
    )
    sweep.add_argument("--dry-run", action="store_true", help="say what would be run, and stop")
    sweep.add_argument("--json", action="store_true", help="with --dry-run: the same for programs")
    sweep.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of yaml in front of conf/")
    sweep.add_argument("--launcher", metavar="NAME", help="where to run: local (default) or slurm")
    sweep.add_argument("--jobs", type=_positive, metavar="N", help="processes at once (default: all cores)")
    sweep.add_argument("--jobs-per-gpu", type=_positive, metavar="K", help="processes that share a GPU")
    sweep.add_argument("--max-parallel", type=_positive, metavar="K", help="runs at once on a cluster")
    sweep.add_argument("--retries", type=_count, default=0, metavar="R", help="tries again after a failure")
    rerun = "only failed runs; also those of other code or data than now; or all from the start"
    sweep.add_argument("--rerun", choices=["failed", "changed", "all"], help=rerun)
    sweep.add_argument("--fail-fast", action="store_true", help="stop the sweep at the first failure")
    sweep.add_argument("--no-wait", action="store_true", help="hand the runs to the cluster and leave")
    sweep.set_defaults(command="sweep")


def _add_report(commands: argparse._SubParsersAction) -> None:
    report = commands.add_parser(
        "report",
        help="tables and plots of accuracy against bits",
        description="Tables and plots of accuracy against bits, from the runs of one or more sweeps.",
    )
    _add_names(report, "*", "name or folder of a sweep (default: the latest)")
    report.add_argument(
        "--metric", help="what to report (default: what the data is judged by: accuracy, mean IoU ...)"
    )
    report.add_argument("--format", type=_list, default=["md", "csv", "html"], metavar="F,F", help=_FORMATS)
    report.add_argument("--ci", type=float, default=95, help="confidence level of the intervals, per cent")
    report.add_argument("--tol", type=float, metavar="T", help="points below fp32 that still count as equal")
    report.add_argument("--rows", type=_list, default=[], metavar="AXES", help="rows of one more table")
    report.add_argument("--cols", type=_list, default=[], metavar="AXES", help="and its columns")
    networks = "for the predicted speed-up: 1gbit, 10gbit, a yaml file ... (default: all)"
    report.add_argument("--network", type=_list, default=[], metavar="N,N", help=networks)
    report.add_argument("--to", type=_list, default=[], metavar="TOOL", help="export: tensorboard, mlflow")
    claims = (
        "what papers claim, judged by the runs here or by the committed references: held, contradicted, open"
    )
    report.add_argument("--claims", action="store_true", help=claims)
    report.set_defaults(command="report")


_FORMATS = "tables and pictures to write: csv, md, tex, parquet, html, png, svg, pdf (default: md,csv,html)"


def _add_watching(commands: argparse._SubParsersAction) -> None:
    status = commands.add_parser("status", help="how far a sweep is")
    _add_names(status, "*", "name or folder of a sweep (default: the latest)")
    status.add_argument("--watch", action="store_true", help="keep showing it until nothing runs")
    status.add_argument("--json", action="store_true", help="for programs")
    status.set_defaults(command="status")

    logs = commands.add_parser("logs", help="what a run printed")
    _add_names(logs, "+", "name of a run, or a part of it that no other has")
    logs.add_argument("--rank", type=_count, metavar="K", help="of this process of the run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.set_defaults(command="logs")

    cancel = commands.add_parser("cancel", help="stop a sweep or a run; it can be resumed")
    _add_names(cancel, "+", "name of a sweep or run")
    cancel.set_defaults(command="cancel")

    calibrate = commands.add_parser(
        "calibrate",
        help="measure this machine; forecast steps with more workers and other networks",
        description="Measure what the cost model needs for the model of a run (compute, codec, network) and print "
        "what a step would cost with more workers. Kept beside the sweep, for its report.",
    )
    _complete_by(
        "overrides",
        calibrate.add_argument(
            "overrides", nargs="*", metavar="key=value", help="as for sweep: exp=NAME ..."
        ),
    )
    calibrate.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="a folder of yaml in front of conf/"
    )
    calibrate.add_argument("--nproc", type=_positive, default=1, metavar="N", help="ranks to measure between")
    calibrate.add_argument("--formats", type=_list, default=[], metavar="F,F", help="default: the sweep's")
    calibrate.add_argument(
        "--network", type=_list, default=[], metavar="N,N", help="1gbit, 10gbit, a yaml ..."
    )
    calibrate.add_argument("--algorithm", choices=["direct", "ring", "tree"], default="direct")
    calibrate.add_argument("--overlap", action="store_true", help="as DDP overlaps with the backward pass")
    calibrate.add_argument("--repeats", type=_positive, default=9, metavar="R", help="of every measurement")
    calibrate.set_defaults(command="calibrate")

    doctor = commands.add_parser("doctor", help="what this machine has, what it lacks, and what mends it")
    doctor.add_argument(
        "names", nargs="*", metavar="results_dir=PATH", help="where results are to be written"
    )
    doctor.add_argument("--results-dir", type=Path, metavar="DIR", help="the same")
    doctor.set_defaults(command="doctor")


def _add_names(parser: argparse.ArgumentParser, nargs: str, meaning: str) -> None:
    text = f"{meaning}; results_dir=PATH says where names lie"
    names = parser.add_argument("names", nargs=nargs, metavar="NAME", help=text)
    _complete_by("sweeps" if nargs == "*" else "sweeps_and_runs", names)


def _complete_by(name: str, argument: argparse.Action) -> None:
    """The shell's completion of `argument` is cpdrun.shell.complete.<name>, imported when asked."""

    def completer(**words: str) -> list[str]:
        from cpdrun.shell import complete

        return getattr(complete, name)(**words)

    argument.completer = completer


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, not {text!r}")
    return int(text)
