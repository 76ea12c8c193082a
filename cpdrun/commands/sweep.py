"""The command `cpdrun sweep`, which trains every combination of an experiment's axes."""

import argparse
from typing import TYPE_CHECKING

from cpdrun.arguments import add_json, add_mode, add_overrides
from cpdrun.commands.launching import (
    add_options,
    cancelled_before,
    may_start,
    options_of,
    read_metrics_again,
    words_of,
)
from cpdrun.errors import FAILED, INTERRUPTED, OK, UserError, before_a_start, writing

if TYPE_CHECKING:
    from cpdrun.commands.sweep_document import SweepDocument
    from cpdrun.config.run_states import RunStates
    from cpdrun.launch import LaunchOptions, Session, Summary
    from cpdrun.shell.output import Output
    from cpdrun.stats.seed_power import SeedPower
    from cpdrun.sweep import Plan, PlannedRun

WHAT_TO_RUN = (
    "say what to run: cpdrun sweep exp=NAME, such as exp=digits_bits, or key=value for one run of the defaults. "
    "`cpdrun sweep exp=list` lists the experiments"
)
DOCUMENTS = {"sweep": "cpdrun.commands.sweep_document:SweepDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    sweep = commands.add_parser(
        "sweep",
        help="train every combination of an experiment's axes",
        description="Train every combination of an experiment's axes. An axis is a setting with several values, such "
        "as format=fp32,e4m3. Finished runs are skipped, so a sweep that was stopped continues when its command "
        "is typed again.",
        epilog="Example: cpdrun sweep exp=digits_bits format=e4m3,e3m0 seed=0",
    )
    add_overrides(sweep, "exp=NAME, key=value, or key=a,b,c for an axis")
    sweep.add_argument("--dry-run", action="store_true", help="print what would run, and stop")
    add_json(sweep)
    show = "with --dry-run: print the whole configuration of the first run"
    sweep.add_argument("--show", action="store_true", help=show)
    add_options(sweep, "slurm, or pull, which leaves the runs to `cpdrun sweep --join`")
    rerun = "train again: failed runs, runs whose code or data has changed, or all runs from the start"
    sweep.add_argument("--rerun", choices=["failed", "changed", "all"], help=rerun)
    leave = "hand the runs to the cluster or to other machines, and return"
    sweep.add_argument("--no-wait", action="store_false", dest="wait", help=leave)
    add_mode(sweep, "--join", "train the waiting runs of a sweep that another command started")
    return sweep


def run(arguments: argparse.Namespace) -> int:
    if arguments.show and (arguments.output.as_json or not arguments.dry_run):
        with before_a_start():
            raise UserError(
                "--show needs --dry-run, and prints yaml instead of JSON. The folder of a started run has its "
                "config.yaml"
            )
    if arguments.overrides:
        arguments.output.announce("Planning the runs ...")
    from cpdrun.launch import Session

    with Session() as session:
        return _sweep(arguments, session)


def _sweep(arguments: argparse.Namespace, session: "Session") -> int:
    """Train the runs that are not done, and return the exit code."""
    from cpdrun.commands.sweep_document import SweepDocument
    from cpdrun.config.dry_run import describe_sweep, print_config, print_dry_run
    from cpdrun.config.run_states import run_states

    options, output = options_of(arguments), arguments.output
    sweep = _plan(arguments, session)
    runs = [(sweep.directory.run(run.name), run.config) for run in sweep.runs]
    for line in read_metrics_again(runs, dry_run=arguments.dry_run):
        output.print(line)
    if arguments.show:
        print_config(sweep.runs[0], len(sweep.runs))
        return OK
    found = run_states(sweep)
    to_run, anew = _runs_to_train(sweep, found, arguments.rerun)
    has_unreadable = _print_states(sweep, found, to_run, arguments)
    description = describe_sweep(sweep, found, to_run, options)
    document = SweepDocument(
        **vars(description), dry_run=arguments.dry_run, summary=None, seed_power=None, notes=output.notes
    )
    output.set_result(document)
    if arguments.dry_run:
        if not output.as_json:
            print_dry_run(sweep, found, to_run, options, arguments.config_dir)
        return OK
    code = _train(session, sweep, to_run, anew, arguments, document)
    return code or (FAILED if has_unreadable else OK)


def _plan(arguments: argparse.Namespace, session: "Session") -> "Plan":
    """Plan the runs while PyTorch, which takes longer, is imported in the background."""
    from cpdrun.sweep import listed, plan

    def say_how_many(runs: int) -> None:
        arguments.output.print_progress(f"{runs:,} runs have to be planned ...")

    with before_a_start():
        if not arguments.overrides:
            raise UserError(WHAT_TO_RUN)
        if not arguments.dry_run:
            session.warm_up()
        imports = not arguments.dry_run
        sweep = plan(words_of(arguments), arguments.config_dir, imports=imports, on_many=say_how_many)
        listed(sweep.directory)
    return sweep


def _runs_to_train(
    sweep: "Plan", found: "RunStates", rerun: str | None
) -> "tuple[list[PlannedRun], set[str]]":
    """Return the runs to train, and the names of those to train from the start.

    --rerun all trains every run from the start, and --rerun changed trains those whose code or data has changed. Other
    runs are resumed if possible.
    """
    from cpdrun.record import State

    not_done = set(State) - {State.DONE}
    wanted = {"failed": {State.FAILED}, "all": set(State), "changed": not_done, None: not_done}[rerun]
    changed = set(found.changed) if rerun == "changed" else set()
    to_run = [run for run in sweep.runs if found.states.get(run.name) in wanted or run.name in changed]
    return to_run, {run.name for run in to_run} if rerun == "all" else changed


def _print_states(
    sweep: "Plan", found: "RunStates", to_run: "list[PlannedRun]", arguments: argparse.Namespace
) -> bool:
    """Print the number of runs that are done, the number of runs to start, and any notes.

    Returns:
        True if the record of at least one run cannot be read.
    """
    from cpdrun.record import State

    output = arguments.output
    output.print(f"{sweep.describe()}: {found.count(State.DONE)} done, {len(to_run)} to run")
    if found.changed and not arguments.rerun:
        output.print(found.changed_line())
    for note in _notes(sweep, found, to_run, options_of(arguments)):
        output.note(note)
    problems = [
        text for name, text in found.odd.items() if arguments.rerun != "all" or name not in found.states
    ]
    for text in problems:
        output.note(text, kind="error")
    return bool(problems)


def _notes(
    sweep: "Plan", found: "RunStates", to_run: "list[PlannedRun]", options: "LaunchOptions"
) -> list[str]:
    """Return notes to read before any run starts."""
    from cpdrun.config.ignored_settings import ignored_settings
    from cpdrun.config.script import checkpoint_note, seed_note
    from cpdrun.launch import Job
    from cpdrun.launch.executors import advice, own_class

    executor = own_class(to_run[0].config["launcher"]) if to_run else None
    of_launcher = [] if executor is None else executor.idle(options)
    jobs = [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in to_run]
    if jobs:
        of_launcher += advice(jobs[0].config["launcher"], sweep.directory, jobs, options)
    here = executor is not None and executor.here
    ignored = ignored_settings(sweep.given, [run.config for run in sweep.runs])
    first = sweep.runs[0].config
    of_script = [*seed_note(first, sweep.typed), *checkpoint_note(first, sweep.typed)]
    return [*found.notes(here=here), *sweep.left_out, *of_script, *ignored, *of_launcher]


def _train(
    session: "Session",
    sweep: "Plan",
    to_run: "list[PlannedRun]",
    anew: set[str],
    arguments: argparse.Namespace,
    document: "SweepDocument",
) -> int:
    """Train the runs, print the answer, complete the document, and return the exit code."""
    from cpdrun.config.dry_run import describe_sweep
    from cpdrun.config.run_states import run_states
    from cpdrun.sweep import write_manifest

    output, options = arguments.output, options_of(arguments)
    if not to_run:
        if sweep.question:
            with writing(sweep.directory.path):
                write_manifest(sweep)
        output.print("Nothing to do.")
        document.seed_power = _print_answer(sweep, output)
        return OK
    summary = _launch(session, sweep, to_run, anew, options, arguments)
    if summary is None:
        return INTERRUPTED
    document.summary = summary
    if options.wait and summary.exit_code != INTERRUPTED:
        document.seed_power = _print_answer(sweep, output)
    after = describe_sweep(sweep, run_states(sweep), to_run, options)
    document.plan, document.done, document.missing = after.plan, after.done, after.missing
    document.runs = after.runs
    return summary.exit_code


def _launch(
    session: "Session",
    sweep: "Plan",
    to_run: "list[PlannedRun]",
    anew: set[str],
    options: "LaunchOptions",
    arguments: argparse.Namespace,
) -> "Summary | None":
    """Train the runs if they can be trained. Those in `anew` start from the beginning.

    Returns:
        The summary; None if the sweep was canceled before a run started.
    """
    from cpdrun.config.script import is_script
    from cpdrun.launch import Display, Job, axes_of, print_summary
    from cpdrun.launch.first_run import FirstRun
    from cpdrun.record import forget
    from cpdrun.sweep import write_manifest

    output, directory = arguments.output, sweep.directory
    before = cancelled_before(directory, arguments)
    jobs = [Job(directory.run(run.name), run.config, run.overrides) for run in to_run]
    configs = [run.config for run in to_run]
    if not may_start(session, directory, configs, options, before, arguments.config_dir, output):
        return None
    with before_a_start(), writing(directory.path):
        write_manifest(sweep)
        for job in jobs:
            if job.run.name in anew:
                forget(job.run)
    display = Display(output.progress, axes_of(directory))
    with writing(directory.path):  # An OSError usually means that the disk is full.
        first = FirstRun(jobs, options, display)
        launcher = configs[0]["launcher"]
        summary = session.launch(directory, first.jobs, launcher, options, display, before, more=first.more)
    if not first.problem:
        summary.interrupted += first.held_back
    print_summary(output.progress, directory, summary)
    if options.wait and is_script(configs[0]):
        _note_ignored(sweep, output)
    return summary


def _note_ignored(sweep: "Plan", output: "Output") -> None:
    """Print a note for each setting that the script turned out to ignore."""
    from cpdrun.report.study_text import ignored_texts
    from cpdrun.study.collect import collect, ignored

    for line in ignored_texts(ignored(collect([sweep.directory]))):
        output.note(line)


def _print_answer(sweep: "Plan", output: "Output") -> "SeedPower | None":
    """Print the answer and the report command, and record the tested hypotheses.

    Returns:
        The margins that the seeds can decide; None if no runs are compared.
    """
    from cpdrun.config.manifest import write_ledger
    from cpdrun.report.sweep_text import answer_lines
    from cpdrun.study import ReportError
    from cpdrun.study.reader import read_study
    from cpdrun.study.seed_power import seed_power

    power = None
    if len(sweep.runs) > 1:
        try:
            study = read_study([sweep.directory])
            power = seed_power(study)
            lines = answer_lines(study, sweep.directory, power)
        except ReportError:  # the command `cpdrun report` prints the error
            lines = []
        else:
            with writing(sweep.directory.path):
                hypotheses = [
                    each.hypothesis for each in study.judged.values() if each.hypothesis is not None
                ]
                write_ledger(sweep.directory, hypotheses)
        for line in lines:
            output.print(line)
    if any(sweep.directory.run(run.name).done.exists() for run in sweep.runs):
        output.print(f"For the report: cpdrun report {sweep.directory.path}")
    return power
