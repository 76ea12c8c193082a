"""The command line: sub-commands and dispatch. What is imported at the top costs every call.

Exit codes: 0 all done, 1 some run failed, 2 usage or configuration error, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cpdrun.record import State, SweepDir

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    arguments = _with_words_after_options(parser, *parser.parse_known_args(argv))
    try:
        return arguments.command(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


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
    sweep.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of yaml in front of conf/")
    sweep.add_argument("--launcher", metavar="NAME", help="where to run: local (default) or slurm")
    sweep.add_argument("--jobs", type=_positive, metavar="N", help="processes at once (default: all cores)")
    sweep.add_argument("--jobs-per-gpu", type=_positive, metavar="K", help="processes that share a GPU")
    sweep.add_argument("--max-parallel", type=_positive, metavar="K", help="runs at once on a cluster")
    sweep.add_argument("--retries", type=_count, default=0, metavar="R", help="tries again after a failure")
    sweep.add_argument("--rerun", choices=["failed", "all"], help="only failed runs, or all from the start")
    sweep.add_argument("--fail-fast", action="store_true", help="stop the sweep at the first failure")
    sweep.add_argument("--no-wait", action="store_true", help="hand the runs to the cluster and leave")
    sweep.set_defaults(command=_sweep)


def _add_report(commands: argparse._SubParsersAction) -> None:
    report = commands.add_parser(
        "report",
        help="tables and plots of accuracy against bits",
        description="Tables and plots of accuracy against bits, from the runs of one or more sweeps.",
    )
    _add_names(report, "*", "name or folder of a sweep (default: the latest)")
    report.add_argument("--metric", default="test_accuracy", help="what to report (default: test_accuracy)")
    report.add_argument("--format", type=_list, default=["md", "csv", "html"], metavar="F,F", help=_FORMATS)
    report.add_argument("--ci", type=float, default=95, help="confidence level of the intervals, per cent")
    report.add_argument("--tol", type=float, metavar="T", help="points below fp32 that still count as equal")
    report.add_argument("--rows", type=_list, default=[], metavar="AXES", help="rows of one more table")
    report.add_argument("--cols", type=_list, default=[], metavar="AXES", help="and its columns")
    networks = "for the predicted speed-up: 1gbit, 10gbit, a yaml file ... (default: all)"
    report.add_argument("--network", type=_list, default=[], metavar="N,N", help=networks)
    report.add_argument("--to", type=_list, default=[], metavar="TOOL", help="export: tensorboard, mlflow")
    report.set_defaults(command=_report)


_FORMATS = "tables and pictures to write: csv, md, tex, parquet, html, png, svg, pdf (default: md,csv,html)"


def _add_watching(commands: argparse._SubParsersAction) -> None:
    status = commands.add_parser("status", help="how far a sweep is")
    _add_names(status, "*", "name or folder of a sweep (default: the latest)")
    status.add_argument("--watch", action="store_true", help="keep showing it until nothing runs")
    status.add_argument("--json", action="store_true", help="for programs")
    status.set_defaults(command=_status)

    logs = commands.add_parser("logs", help="what a run printed")
    _add_names(logs, "+", "name of a run, or a part of it that no other has")
    logs.add_argument("--rank", type=_count, metavar="K", help="of this process of the run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.set_defaults(command=_logs)

    cancel = commands.add_parser("cancel", help="stop a sweep or a run; it can be resumed")
    _add_names(cancel, "+", "name of a sweep or run")
    cancel.set_defaults(command=_cancel)

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
    calibrate.set_defaults(command=_calibrate)

    doctor = commands.add_parser("doctor", help="what this machine has, what it lacks, and what mends it")
    doctor.add_argument(
        "names", nargs="*", metavar="results_dir=PATH", help="where results are to be written"
    )
    doctor.add_argument("--results-dir", type=Path, metavar="DIR", help="the same")
    doctor.set_defaults(command=_doctor)


def _add_names(parser: argparse.ArgumentParser, nargs: str, meaning: str) -> None:
    text = f"{meaning}; results_dir=PATH says where names lie"
    names = parser.add_argument("names", nargs=nargs, metavar="NAME", help=text)
    _complete_by("sweeps" if nargs == "*" else "sweeps_and_runs", names)


def _complete_by(name: str, argument: argparse.Action) -> None:
    """The shell's completion of `argument` is cpdrun.complete.<name>, imported when asked."""

    def completer(**words: str) -> list[str]:
        from cpdrun import complete

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


def _sweep(arguments: argparse.Namespace) -> int:
    from cpdrun.config.errors import ConfigError
    from cpdrun.record import State, forget, garbage, record_of, state_of
    from cpdrun.sweep import plan, write_manifest

    if not arguments.dry_run:
        from cpdrun.launch import warm_up

        warm_up()  # importing torch takes longer than planning; it ends with this process
    launcher = [f"launcher={arguments.launcher}"] if arguments.launcher else []
    try:
        sweep = plan([*arguments.overrides, *launcher], arguments.config_dir)
    except ConfigError as error:
        return _usage_error(error)

    states = {run.name: state_of(sweep.directory.run(run.name)) for run in sweep.runs}
    wanted = {"failed": {State.FAILED}, "all": set(State), None: set(State) - {State.DONE}}[arguments.rerun]
    to_run = [run for run in sweep.runs if states[run.name] in wanted]
    done = sum(state is State.DONE for state in states.values())
    print(f"{sweep.describe()}: {done} done, {len(to_run)} to run", flush=True)
    if arguments.dry_run:
        _print_forecast(sweep.directory, [states[run.name] for run in to_run], arguments.jobs)
        return OK
    ended = [sweep.directory.run(name) for name, state in states.items() if state is State.DONE]
    broken = [run for run in ended if record_of(run) is None and arguments.rerun != "all"]
    for run in broken:
        print(f"error: {garbage(run)}", file=sys.stderr)
    if not to_run:
        print(f"Nothing to do. For the report: cpdrun report {sweep.directory.path}")
        return FAILED if broken else OK

    from cpdrun.launch import Job, LaunchError, LaunchOptions, launch, preflight
    from cpdrun.terminal import Terminal

    jobs = [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in to_run]
    options = LaunchOptions(
        jobs=arguments.jobs,
        jobs_per_gpu=arguments.jobs_per_gpu,
        max_parallel=arguments.max_parallel,
        retries=arguments.retries,
        fail_fast=arguments.fail_fast,
        wait=not arguments.no_wait,
    )
    try:
        problems = preflight([run.config for run in to_run])
        if problems:
            return _usage_error(*problems)
        write_manifest(sweep)
        if arguments.rerun == "all":
            for job in jobs:
                forget(job.run)
        summary = launch(sweep.directory, jobs, to_run[0].config["launcher"], options, Terminal())
    except LaunchError as error:
        return _usage_error(error)
    except OSError as error:
        return _usage_error(f"cannot write {error.filename or sweep.directory.path}: {error.strerror}")
    if summary.exit_code == OK and not arguments.no_wait:
        print(f"For the report: cpdrun report {sweep.directory.path}")
    return summary.exit_code or (FAILED if broken else OK)


def _print_forecast(sweep: "SweepDir", states: list["State"], jobs: int | None) -> None:
    """What the runs to do are, and how long they would take, by those that are done."""
    from collections import Counter

    from cpdrun.launch.display import duration
    from cpdrun.launch.resources import cores
    from cpdrun.launch.status import estimate_seconds
    from cpdrun.record import State

    words = {State.PENDING: "new", State.PREEMPTED: "to be resumed", State.DONE: "again"}
    counts = Counter(words.get(state, str(state)) for state in states)
    slots = jobs or cores()
    seconds = estimate_seconds(sweep.runs(), len(states), slots) if states else None
    if set(counts) - {"new"} or seconds is not None:
        about = f"; about {duration(seconds)} with {slots} at once" if seconds is not None else ""
        print(", ".join(f"{count} {word}" for word, count in counts.items()) + about)


def _report(arguments: argparse.Namespace) -> int:
    from cpdrun.record import NotFoundError, find_sweeps
    from cpdrun.report import ReportError, ReportUsageError, write_report
    from cpdrun.terminal import Terminal

    try:
        write_report(
            find_sweeps(arguments.names),
            metric=arguments.metric,
            formats=arguments.format,
            ci=arguments.ci,
            tolerance=arguments.tol,
            rows=arguments.rows,
            cols=arguments.cols,
            networks=arguments.network,
            export_to=arguments.to,
            console=Terminal(),
        )
    except (NotFoundError, ReportUsageError) as error:
        return _error(error, USAGE)
    except ReportError as error:
        return _error(error, FAILED)
    return OK


def _status(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.status import as_json, print_status, sweep_status
    from cpdrun.record import NotFoundError, find_sweeps
    from cpdrun.terminal import Terminal

    try:
        sweeps = find_sweeps(arguments.names)
    except NotFoundError as error:
        return _error(error, USAGE)
    if arguments.json:
        print(as_json([row for sweep in sweeps for row in sweep_status(sweep)]))
        return OK
    for sweep in sweeps:
        print_status(Terminal(), sweep, watch=arguments.watch)
    return OK


def _logs(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.logs import NoLogError, lines
    from cpdrun.record import NotFoundError, find_runs

    try:
        for run in find_runs(arguments.names):
            for line in lines(run, arguments.rank, follow=arguments.follow):
                print(line, end="", flush=arguments.follow)
    except (NotFoundError, NoLogError) as error:
        return _error(error, USAGE)
    except BrokenPipeError:  # `cpdrun logs RUN | head`
        sys.stderr.close()
    return OK


def _cancel(arguments: argparse.Namespace) -> int:
    from cpdrun.launch import LaunchError
    from cpdrun.launch.cancel import cancel_run, cancel_sweep
    from cpdrun.record import NotFoundError, find_sweeps_or_runs

    try:
        sweeps, runs = find_sweeps_or_runs(arguments.names)
        for sweep in sweeps:
            asked, waiting = cancel_sweep(sweep)
            queue = f", {waiting} taken out of Slurm's queue" if waiting else ""
            print(f"{sweep.name}: {asked} running runs asked to save and stop{queue}")
        for run in runs:
            print(f"{run.name}: {'asked to save and stop' if cancel_run(run) else 'is not running'}")
    except NotFoundError as error:
        return _error(error, USAGE)
    except LaunchError as error:
        return _error(error, FAILED)
    except OSError as error:
        return _error(f"cannot write {error.filename}: {error.strerror}", FAILED)
    return OK


def _calibrate(arguments: argparse.Namespace) -> int:
    from custom_fp.names import is_scaled

    from cpdrun.config.errors import ConfigError
    from cpdrun.launch import LaunchError
    from cpdrun.launch.calibrate import calibrate
    from cpdrun.report.costmodel import CalibrationError, forecast, network, print_forecast, read_calibration
    from cpdrun.sweep import plan
    from cpdrun.terminal import Terminal

    try:
        sweep = plan(arguments.overrides, arguments.config_dir)
        networks = {name: network(name) for name in arguments.network}
        swept = [run.config["format"] for run in sweep.runs if not is_scaled(run.config["format"])]
        formats = arguments.formats or ["fp32", "bf16", *swept]
        path = sweep.directory.calibration
        formats = list(dict.fromkeys(formats))
        calibrate(
            sweep.runs[0].config, path, nproc=arguments.nproc, formats=formats, repeats=arguments.repeats
        )
        calibration = read_calibration(path)
    except (ConfigError, CalibrationError, LaunchError) as error:
        return _error(error, USAGE)
    if not networks:
        measured = calibration.network
        networks = {"as measured": measured} if measured else {"10gbit": network("10gbit")}
    for name, link in networks.items():
        rows = list(forecast(calibration, link, algorithm=arguments.algorithm, overlap=arguments.overlap))
        print_forecast(Terminal(), f"{name}, {arguments.algorithm}", rows)
    return OK


def _doctor(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.doctor import examine, print_findings
    from cpdrun.record import split_results_dir
    from cpdrun.terminal import Terminal

    results_dir, unknown = split_results_dir(arguments.names)
    if unknown:
        return _usage_error(f"cannot read {unknown[0]!r}; doctor takes results_dir=PATH alone")
    return print_findings(Terminal(), examine(arguments.results_dir or results_dir))


def _usage_error(*problems: object) -> int:
    lines = [f"error: {str(problem).rstrip('.')}." for problem in problems]
    print("\n".join(lines) + " Nothing was started.", file=sys.stderr)
    return USAGE


def _error(error: object, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
