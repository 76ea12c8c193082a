"""The commands: what each does, in the order a user meets them. What is imported at the top costs every call.

`arguments.py` says what may be typed.

Exit codes: 0 all done, 1 some run failed, 2 usage or configuration error, 130 interrupted.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cpdrun.arguments import read as arguments_of
from cpdrun.shell.visible import visible, visible_line

if TYPE_CHECKING:
    from pathlib import Path

    from cpdrun.sweep import Plan, PlannedRun

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = arguments_of(argv)
    commands = {
        "sweep": _sweep,
        "report": _report,
        "status": _status,
        "logs": _logs,
        "cancel": _cancel,
        "calibrate": _calibrate,
        "doctor": _doctor,
    }
    try:
        _end_as_by_ctrl_c(signal.SIGTERM, signal.SIGHUP)
        return commands[arguments.command](arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _end_as_by_ctrl_c(*numbers: int) -> None:
    """Until a launch handles these signals itself, they do what Ctrl-C does; one that nohup ignores stays ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)


def _sweep(arguments: argparse.Namespace) -> int:
    from cpdrun.config.errors import ConfigError
    from cpdrun.record import State
    from cpdrun.record.fingerprint import of_other_code
    from cpdrun.sweep import listed, plan
    from cpdrun.sweep.idle import idle_settings
    from cpdrun.sweep.standing import standing

    if arguments.json and not arguments.dry_run:
        return _usage_error("--json is for --dry-run; of a sweep that runs, `cpdrun status --json` tells")
    if not arguments.overrides:
        return _usage_error(_which_experiment(arguments.config_dir))
    if not arguments.dry_run:
        from cpdrun.launch import warm_up

        warm_up()  # importing torch takes longer than planning; it ends with this process
    launcher = [f"launcher={arguments.launcher}"] if arguments.launcher else []
    words, imports = [*arguments.overrides, *launcher], not arguments.dry_run
    try:
        sweep = plan(words, arguments.config_dir, imports=imports, on_many=_say_how_many)
        listed(sweep.directory)
    except ConfigError as error:
        return _usage_error(error)

    found = standing(sweep)
    not_done = set(State) - {State.DONE}
    wanted = {"failed": {State.FAILED}, "all": set(State), "changed": not_done, None: not_done}
    again = set(found.changed) if arguments.rerun == "changed" else set()
    to_run = [r for r in sweep.runs if found.states.get(r.name) in wanted[arguments.rerun] or r.name in again]
    if arguments.json:
        from cpdrun.sweep.dry_run import as_json

        print(as_json(sweep, found, to_run, arguments))
        return OK
    print(f"{sweep.describe()}: {found.count(State.DONE)} done, {len(to_run)} to run", flush=True)
    if found.changed and not arguments.rerun:
        print(of_other_code(found.changed), flush=True)
    here = bool(to_run) and to_run[0].config["launcher"]["_target_"] == "cpdrun.launch.local.LocalExecutor"
    idle = idle_settings(arguments.overrides, [run.config for run in sweep.runs])
    for note in [*found.notes(here=here), *idle]:
        print(f"note: {note}", file=sys.stderr)
    odd = {
        name: text for name, text in found.odd.items() if arguments.rerun != "all" or name not in found.states
    }
    for text in odd.values():
        print(f"error: {text}", file=sys.stderr)
    if arguments.dry_run:
        from cpdrun.sweep.dry_run import print_dry_run

        print_dry_run(sweep, found, to_run, arguments)
        return OK
    if not to_run:
        print(f"Nothing to do. For the report: cpdrun report {sweep.directory.path}")
        return FAILED if odd else OK
    return _launch(sweep, to_run, again, arguments) or (FAILED if odd else OK)


def _launch(sweep: "Plan", to_run: "list[PlannedRun]", again: set[str], arguments: argparse.Namespace) -> int:
    from cpdrun.config.errors import ConfigError
    from cpdrun.launch import FolderGoneError, Job, LaunchError, LaunchOptions, launch, preflight
    from cpdrun.record import cancellation, forget
    from cpdrun.shell.terminal import Terminal
    from cpdrun.sweep import write_manifest
    from cpdrun.sweep.needs import missing_folders, twin

    cancelled_before = cancellation(sweep.directory)
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
        problems, notes = preflight([run.config for run in to_run])
        if problems:
            if any(missing_folders(run.config) for run in to_run):
                problems[-1] += f". Without it: {twin(to_run[0].config['exp'], arguments.config_dir)}"
            return _usage_error(*problems)
        for note in notes:
            print(f"note: {note}", flush=True)
        if cancellation(sweep.directory) != cancelled_before:
            print("Cancelled from another shell. Nothing was started.")
            return INTERRUPTED
        write_manifest(sweep)
        for job in jobs:
            if arguments.rerun == "all" or job.run.name in again:
                forget(job.run)
        launcher = to_run[0].config["launcher"]
        summary = launch(sweep.directory, jobs, launcher, options, Terminal(), cancelled_before)
    except FolderGoneError as error:
        return _error(error, FAILED)
    except (LaunchError, ConfigError) as error:
        return _usage_error(error)
    except OSError as error:
        return _usage_error(f"cannot write {error.filename or sweep.directory.path}: {error.strerror}")
    if summary.exit_code == OK and not arguments.no_wait:
        print(f"For the report: cpdrun report {sweep.directory.path}")
    return summary.exit_code


def _which_experiment(config_dir: "Path | None") -> str:
    from cpdrun.config.compose import Composer
    from cpdrun.config.errors import ConfigError

    try:
        with Composer(config_dir) as composer:
            names = ", ".join(composer.groups()["exp"])
    except ConfigError as error:
        return str(error)
    return f"say what to run: cpdrun sweep exp=NAME, or key=value for one run of the defaults; experiments: {names}"


def _say_how_many(runs: int) -> None:
    print(f"planning {runs:,} runs ...", file=sys.stderr, flush=True)


def _report(arguments: argparse.Namespace) -> int:
    from cpdrun.record import NotFoundError, find_sweeps
    from cpdrun.report import ReportError, ReportUsageError, write_report
    from cpdrun.shell.terminal import Terminal

    if arguments.claims:
        return _claims(arguments)
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


def _claims(arguments: argparse.Namespace) -> int:
    from cpdrun.record import split_results_dir
    from cpdrun.report import ReportError, ReportUsageError
    from cpdrun.report.claims import write_claims
    from cpdrun.shell.terminal import Terminal

    results_dir, names = split_results_dir(arguments.names)
    if names:
        return _error(f"--claims judges all claims; it takes results_dir=PATH alone, not {names[0]!r}", USAGE)
    try:
        write_claims(results_dir, ci=arguments.ci, console=Terminal())
    except ReportUsageError as error:
        return _error(error, USAGE)
    except ReportError as error:
        return _error(error, FAILED)
    return OK


def _status(arguments: argparse.Namespace) -> int:
    from cpdrun.launch.progress.status import as_json, print_status, sweep_status
    from cpdrun.record import NotFoundError, find_sweeps
    from cpdrun.shell.terminal import Terminal

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
    from cpdrun.launch.progress.logs import NoLogError, lines
    from cpdrun.record import NotFoundError, find_runs

    try:
        for run in find_runs(arguments.names):
            for line in lines(run, arguments.rank, follow=arguments.follow):
                print(visible_line(line) if sys.stdout.isatty() else line, end="", flush=arguments.follow)
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
            print(f"{visible(sweep.name)}: {asked} running runs asked to save and stop{queue}")
        for run in runs:
            print(f"{visible(run.name)}: {'asked to save and stop' if cancel_run(run) else 'is not running'}")
    except NotFoundError as error:
        return _error(error, USAGE)
    except LaunchError as error:
        return _error(error, FAILED)
    except OSError as error:
        return _error(f"cannot write {error.filename}: {error.strerror}", FAILED)
    return OK


def _calibrate(arguments: argparse.Namespace) -> int:
    from custom_fp.formats.names import parse

    from cpdrun.config.errors import ConfigError
    from cpdrun.launch import LaunchError
    from cpdrun.launch.calibrate import calibrate
    from cpdrun.report.costmodel import CalibrationError, forecast, network, print_forecast, read_calibration
    from cpdrun.shell.terminal import Terminal
    from cpdrun.sweep import plan

    try:
        sweep = plan(arguments.overrides, arguments.config_dir)
        networks = {name: network(name) for name in arguments.network}
        named = [run.config["format"] for run in sweep.runs]
        swept = [name for name in named if not parse(name).has_scales]
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
    from cpdrun.shell.terminal import Terminal

    results_dir, unknown = split_results_dir(arguments.names)
    if unknown:
        return _usage_error(f"cannot read {unknown[0]!r}; doctor takes results_dir=PATH alone")
    return print_findings(Terminal(), examine(arguments.results_dir or results_dir))


def _usage_error(*problems: object) -> int:
    texts = [visible_line(str(problem)) for problem in problems]
    lines = [f"error: {text if text.endswith(('.', '?', '!')) else f'{text}.'}" for text in texts]
    print("\n".join(lines) + " Nothing was started.", file=sys.stderr)
    return USAGE


def _error(error: object, code: int) -> int:
    print(f"error: {visible_line(str(error))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
