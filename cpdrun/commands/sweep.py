"""The command `cpdrun sweep`, which trains every combination of an experiment's axes."""

import argparse
import math
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
    from cpdrun.launch import LaunchOptions, Session, Summary
    from cpdrun.shell.output import Output
    from cpdrun.study.metric import Metric
    from cpdrun.study.seed_power import SeedPower
    from cpdrun.sweep import Plan, PlannedRun
    from cpdrun.sweep.run_states import RunStates

WHAT_TO_RUN = (
    "say what to run: cpdrun sweep exp=NAME, such as exp=digits_bits, or key=value for one run of the defaults. "
    "`cpdrun sweep exp=?` lists the experiments"
)
DOCUMENTS = {"sweep": "cpdrun.commands.sweep_document:SweepDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    sweep = commands.add_parser(
        "sweep",
        help="train every combination of an experiment's axes",
        description="Train every combination of an experiment's axes. Finished runs are skipped, so a sweep that was "
        "stopped continues when its command is typed again.",
        epilog="Example: cpdrun sweep exp=digits_bits format=e4m3,e3m0 seed=0",
    )
    add_overrides(sweep, "exp=NAME, key=value, or key=a,b,c for an axis")
    sweep.add_argument("--dry-run", action="store_true", help="print what would run, and stop")
    add_json(sweep)
    show = "with --dry-run: print the whole configuration of the first run"
    sweep.add_argument("--show", action="store_true", help=show)
    add_options(sweep, "slurm, or pull, which leaves the runs to `cpdrun sweep --join`")
    rerun = "run failed runs again; or those of other code or data, too; or all from the start"
    sweep.add_argument("--rerun", choices=["failed", "changed", "all"], help=rerun)
    leave = "hand the runs to the cluster or to other machines, and return"
    sweep.add_argument("--no-wait", action="store_false", dest="wait", help=leave)
    add_mode(sweep, "--join", "take the waiting runs of a sweep on this machine")
    return sweep


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch import Session

    with Session() as session:
        return _sweep(arguments, session)


def _sweep(arguments: argparse.Namespace, session: "Session") -> int:
    """Plan the sweep, train the runs that are not done, and return the exit code."""
    from cpdrun.commands.sweep_document import SweepDocument
    from cpdrun.record import State
    from cpdrun.record.fingerprint import of_other_code
    from cpdrun.sweep import listed, plan, write_manifest
    from cpdrun.sweep.dry_run import describe_sweep, print_config, print_dry_run
    from cpdrun.sweep.run_states import run_states

    options, output = options_of(arguments), arguments.output

    def say_how_many(runs: int) -> None:
        output.print_progress(f"planning {runs:,} runs ...")

    with before_a_start():
        if arguments.show and (output.as_json or not arguments.dry_run):
            raise UserError(
                "--show needs --dry-run, and prints yaml instead of JSON. The folder of a started run has its "
                "config.yaml"
            )
        if not arguments.overrides:
            raise UserError(WHAT_TO_RUN)
        if not arguments.dry_run:
            session.warm_up()  # importing torch takes longer than planning
        words, imports = words_of(arguments), not arguments.dry_run
        sweep = plan(words, arguments.config_dir, imports=imports, on_many=say_how_many)
        listed(sweep.directory)

    runs = [(sweep.directory.run(run.name), run.config) for run in sweep.runs]
    for line in read_metrics_again(runs, dry_run=arguments.dry_run):
        output.print(line)
    found = run_states(sweep)
    not_done = set(State) - {State.DONE}
    wanted = {"failed": {State.FAILED}, "all": set(State), "changed": not_done, None: not_done}
    again = set(found.changed) if arguments.rerun == "changed" else set()
    to_run = [r for r in sweep.runs if found.states.get(r.name) in wanted[arguments.rerun] or r.name in again]
    if arguments.show:
        print_config(sweep.runs[0], len(sweep.runs))
        return OK
    output.print(f"{sweep.describe()}: {found.count(State.DONE)} done, {len(to_run)} to run")
    if found.changed and not arguments.rerun:
        output.print(of_other_code(found.changed))
    for note in _notes(sweep, found, to_run, options):
        output.note(note)
    odd = [text for name, text in found.odd.items() if arguments.rerun != "all" or name not in found.states]
    for text in odd:
        output.note(text, kind="error")
    description = describe_sweep(sweep, found, to_run, options)
    document = SweepDocument(
        **vars(description), dry_run=arguments.dry_run, summary=None, seed_power=None, notes=output.notes
    )
    output.set_result(document)
    if arguments.dry_run:
        if not output.as_json:
            print_dry_run(sweep, found, to_run, options, arguments.config_dir)
        return OK
    if not to_run:
        if sweep.question:
            with writing(sweep.directory.path):
                write_manifest(sweep)
        document.seed_power = _conclude(sweep, output)
        output.print(f"Nothing to do. For the report: cpdrun report {sweep.directory.path}")
        return FAILED if odd else OK
    anew = {r.name for r in to_run} if arguments.rerun == "all" else again
    summary = _launch(session, sweep, to_run, anew, options, arguments)
    if summary is None:
        return INTERRUPTED
    has_ended = options.wait and summary.exit_code != INTERRUPTED
    document.summary = summary.document()
    document.seed_power = _conclude(sweep, output) if has_ended else None
    if summary.exit_code == OK and options.wait:
        output.print(f"For the report: cpdrun report {sweep.directory.path}")
    after = describe_sweep(sweep, run_states(sweep), to_run, options)
    document.plan, document.done, document.missing = after.plan, after.done, after.missing
    document.runs = after.runs
    return summary.exit_code or (FAILED if odd else OK)


def _launch(
    session: "Session",
    sweep: "Plan",
    to_run: "list[PlannedRun]",
    anew: set[str],
    options: "LaunchOptions",
    arguments: argparse.Namespace,
) -> "Summary | None":
    """Check whether the runs can be trained, and then train them.

    Args:
        session: The session that launches the runs.
        sweep: The planned sweep.
        to_run: The runs to train.
        anew: The names of runs to train from the start, even if they are done or can be resumed.
        options: The options of the launch.
        arguments: The arguments of the command.

    Returns:
        The summary of the runs, or None if the sweep was cancelled before a run started.
    """
    from cpdrun.config.script import is_script
    from cpdrun.launch import Display, Job, axes_of, print_summary
    from cpdrun.launch.first_run import FirstRun
    from cpdrun.record import forget
    from cpdrun.report.study_text import ignored_texts
    from cpdrun.study.collect import collect, ignored
    from cpdrun.sweep import write_manifest

    output = arguments.output
    before = cancelled_before(sweep.directory, arguments)
    jobs = [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in to_run]
    configs = [run.config for run in to_run]
    if not may_start(session, sweep.directory, configs, options, before, arguments.config_dir, output):
        return None
    with before_a_start(), writing(sweep.directory.path):
        write_manifest(sweep)
        for job in jobs:
            if job.run.name in anew:
                forget(job.run)
    launcher = to_run[0].config["launcher"]
    display = Display(output.progress, axes_of(sweep.directory))
    first = FirstRun(jobs, options, display.say)
    with writing(sweep.directory.path):  # usually because the disk is full
        summary = session.launch(
            sweep.directory, first.jobs, launcher, options, display, before, more=first.more
        )
    print_summary(output.progress, summary)
    if options.wait and is_script(configs[0]):
        for line in ignored_texts(ignored(collect([sweep.directory]))):
            output.note(line)
    return summary


def _conclude(sweep: "Plan", output: "Output") -> "SeedPower | None":
    """Record the tested hypotheses in sweep.yaml, and print which differences the seeds can settle.

    Returns:
        The power of the seeds, or None if no runs are compared.
    """
    from cpdrun.study import ReportError
    from cpdrun.study.reader import read_study
    from cpdrun.study.seed_power import seed_power
    from cpdrun.sweep.manifest import write_ledger

    if len(sweep.runs) < 2:
        return None
    try:
        study = read_study([sweep.directory])
        hypotheses, power = study.hypotheses, seed_power(study)
    except ReportError:  # `cpdrun report` tells the user about the error
        return None
    with writing(sweep.directory.path):
        write_ledger(sweep.directory, hypotheses)
    if power is None:
        return None
    output.print(describe_seed_power(power, study.metric))
    return power


def describe_seed_power(power: "SeedPower", metric: "Metric") -> str:
    """Return a sentence that says which differences the seeds can settle.

    An example is `3 seeds settle differences of 4.6 points; 1 point takes about 15.`
    """
    from cpdrun.study.seed_power import MOST_PAIRS

    def show(value: float) -> str:
        return metric.show_tolerance(float(f"{value * metric.scale:.2g}"))

    margin = metric.show_tolerance(power.margin * metric.scale)
    if power.limited_by_test_set:
        return (
            f"{power.test_samples:.0f} test samples cannot settle {margin} with any number of seeds, only differences "
            f"of about {show(power.test_set_settles)}."
        )
    settled = f"differences of {show(power.settles)}" if math.isfinite(power.settles) else "no difference yet"
    said = f"{power.pairs} seeds settle {settled}"
    if math.isnan(power.margin):
        return f"{said}."
    if power.settles <= power.margin:
        return f"{said}; the margin is {margin}."
    many = f"more than {MOST_PAIRS:,}" if power.pairs_needed is None else f"about {power.pairs_needed}"
    return f"{said}; {margin} {'take' if margin.endswith('points') else 'takes'} {many}."


def _notes(
    sweep: "Plan", found: "RunStates", to_run: "list[PlannedRun]", options: "LaunchOptions"
) -> list[str]:
    """Return notes that the user should read before any run starts."""
    from cpdrun.config.script import seed_note
    from cpdrun.launch import Job
    from cpdrun.launch.executors import advice, own_class
    from cpdrun.sweep.ignored_settings import ignored_settings

    executor = own_class(to_run[0].config["launcher"]) if to_run else None
    of_launcher = [] if executor is None else executor.idle(options)
    jobs = [Job(sweep.directory.run(run.name), run.config, run.overrides) for run in to_run]
    if jobs:
        of_launcher += advice(jobs[0].config["launcher"], sweep.directory, jobs, options)
    here = executor is not None and executor.here
    idle = ignored_settings(sweep.given, [run.config for run in sweep.runs])
    seeds = seed_note(sweep.runs[0].config, sweep.typed)
    return [*found.notes(here=here), *sweep.left_out, *seeds, *idle, *of_launcher]
