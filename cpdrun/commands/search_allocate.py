"""The command `cpdrun search --allocate`.

It finds the layers and roles that need more bits, and allocates bits to them. A role is a kind of tensor, such as
weight or gradient.
"""

import argparse
from typing import TYPE_CHECKING

from cpdrun.arguments import add_json, add_overrides
from cpdrun.commands.launching import add_options, cancelled_before, may_start, options_of, words_of
from cpdrun.errors import FAILED, INTERRUPTED, OK, before_a_start, writing

if TYPE_CHECKING:
    from cpdrun.launch import LaunchOptions, Session
    from cpdrun.search.allocate.question import ScreenQuestion
    from cpdrun.search.allocate.results import Round
    from cpdrun.sweep import PlannedRun

DOCUMENTS = {"screen": "cpdrun.report.allocation_text:ScreenDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    screen = commands.add_parser(
        "search --allocate",
        description="Train an experiment with low or high bits for each group of layers and role, by a two-level "
        "screening design. Say which of them matter, and allocate bits for a search to certify. Finished runs are "
        "skipped, so a command that was stopped continues when it is typed again.",
        epilog="Example: cpdrun search --allocate exp=digits_screen_small screen.seeds=2",
    )
    add_overrides(screen, "exp=NAME, key=value, or screen.key=value")
    screen.add_argument(
        "--dry-run", action="store_true", help="print the factors and the number of runs, and stop"
    )
    add_json(screen)
    add_options(screen, "slurm, or pull, which leaves the runs to `cpdrun sweep --join`")
    return screen


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch import Session

    with Session() as session:
        return _screen(arguments, options_of(arguments), session)


def _screen(arguments: argparse.Namespace, options: "LaunchOptions", session: "Session") -> int:
    """Train the rounds of a screen, print the allocation, and return the exit code."""
    from cpdrun.report.allocation_text import describe_effects, make_effects_table
    from cpdrun.search.allocate.question import ask
    from cpdrun.search.allocate.results import Round, choose_allocation, missing_runs, read
    from cpdrun.sweep import listed

    with before_a_start():
        if not arguments.dry_run:
            session.warm_up()  # start importing torch, which takes longer than planning
        question: ScreenQuestion | None = ask(
            words_of(arguments), arguments.config_dir, imports=not arguments.dry_run
        )
        assert question is not None
        listed(question.directory)
    console, rounds = arguments.output.console, list[Round]()
    while question is not None:
        to_run = _show_round(question, rounds, arguments)
        if arguments.dry_run:
            return OK
        code = _launch(session, question, to_run, options, arguments)
        if code == INTERRUPTED:
            return code
        if (found := read(question)) is None:
            console.print(
                f"{missing_runs(question)} runs have no result yet, and effects need all of them. Repeat the command."
            )
            return FAILED
        rounds.append(Round(question, found))
        console.print(make_effects_table(question, found), width=max(console.width, 110), crop=False)
        arguments.output.print_lines(describe_effects(question, found))
        chosen = choose_allocation(rounds)
        question = None if chosen is None else question.next_round(chosen.levels)
    _show_allocation(rounds, arguments)
    return code


def _show_round(
    question: "ScreenQuestion", rounds: "list[Round]", arguments: argparse.Namespace
) -> "list[PlannedRun]":
    """Print what a round of the screen varies and how many of its runs are done, and return the other runs."""
    from cpdrun.config.run_states import run_states
    from cpdrun.record import State
    from cpdrun.report.allocation_text import ScreenDocument, describe_round
    from cpdrun.search.allocate.results import screen_result

    output = arguments.output
    output.print_lines(describe_round(question))
    found = run_states(question.plan)
    to_run = [run for run in question.runs if found.states.get(run.name) is not State.DONE]
    output.print_lines([f"{len(question.runs) - len(to_run)} done, {len(to_run)} to run"])
    for text in found.odd.values():  # one text for each run that cannot be read
        output.note(text, kind="error")
    result = screen_result(question, rounds, None, None)
    output.set_result(ScreenDocument(**vars(result), dry_run=arguments.dry_run))
    return to_run


def _launch(
    session: "Session",
    question: "ScreenQuestion",
    to_run: "list[PlannedRun]",
    options: "LaunchOptions",
    arguments: argparse.Namespace,
) -> int:
    from cpdrun.launch import Display, Job, axes_of, print_summary
    from cpdrun.search.allocate.results import write_rows
    from cpdrun.sweep import write_manifest

    directory, output = question.directory, arguments.output
    if not to_run:
        return OK
    before = cancelled_before(directory, arguments)
    configs = [run.config for run in to_run] + question.later_configs()

    if not may_start(session, directory, configs, options, before, arguments.config_dir, output):
        return INTERRUPTED
    with before_a_start(), writing(directory.path):
        write_manifest(question.plan)
        write_rows(question)
    jobs = [Job(directory.run(run.name), run.config, run.overrides) for run in to_run]
    display = Display(output.progress, axes_of(directory))
    with writing(directory.path):  # If writing fails, the disk is usually full.
        summary = session.launch(directory, jobs, configs[0]["launcher"], options, display, before)
    print_summary(output.progress, directory, summary)
    return INTERRUPTED if summary.interrupted else summary.exit_code


def _show_allocation(rounds: "list[Round]", arguments: argparse.Namespace) -> None:
    from cpdrun.report.allocation_text import ScreenDocument, describe_allocation
    from cpdrun.search.allocate.results import choose_allocation, screen_result, write_allocation

    output = arguments.output
    question, chosen = rounds[-1].question, choose_allocation(rounds)
    output.print_lines(describe_allocation(rounds, chosen))
    command = None
    if chosen is not None:
        with writing(question.directory.path):
            command = write_allocation(rounds, chosen)
        output.print_lines([f"To certify it: {command}"])
    result = screen_result(question, rounds, chosen, command)
    output.set_result(ScreenDocument(**vars(result), dry_run=False))
