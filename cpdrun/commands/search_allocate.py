"""The command `cpdrun search --allocate`.

It finds the layers and roles that need more bits, and allocates bits to them.
"""

import argparse
from typing import TYPE_CHECKING, Any

from cpdrun.arguments import add_json, add_overrides
from cpdrun.commands.launching import add_options, cancelled_before, may_start, options_of, words_of
from cpdrun.errors import FAILED, INTERRUPTED, OK, before_a_start, writing

if TYPE_CHECKING:
    from rich.console import Console

    from cpdrun.launch import LaunchOptions, Session
    from cpdrun.search.allocate.allocation import Allocation
    from cpdrun.search.allocate.question import ScreenQuestion
    from cpdrun.search.allocate.results import Round
    from cpdrun.sweep import PlannedRun

DOCUMENTS = {"screen": "cpdrun.search.documents:ScreenDocument"}


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
    """Train the rounds of a screen, print the allocation of bits, and return the exit code."""
    from cpdrun.record import State
    from cpdrun.search.allocate.question import ask
    from cpdrun.search.allocate.results import Round, read
    from cpdrun.search.allocate.words import asked_lines, facts
    from cpdrun.sweep import listed
    from cpdrun.sweep.run_states import run_states

    with before_a_start():
        if not arguments.dry_run:
            session.warm_up()  # importing torch takes longer than planning
        question = ask(words_of(arguments), arguments.config_dir, imports=not arguments.dry_run)
        listed(question.directory)
    output, rounds = arguments.output, list[Any]()
    console = output.console
    while True:
        for line in asked_lines(question):
            console.print(line, soft_wrap=True, markup=False)
        found = run_states(question.plan)
        to_run = [run for run in question.runs if found.states.get(run.name) is not State.DONE]
        console.print(
            f"{len(question.runs) - len(to_run)} done, {len(to_run)} to run", soft_wrap=True, markup=False
        )
        for text in found.odd.values():  # Runs with unreadable records are not counted.
            output.note(text, kind="error")
        output.set_result({**facts(question, rounds, None, None), "dry_run": arguments.dry_run})
        if arguments.dry_run:
            return OK
        code = _launch(session, question, to_run, options, arguments)
        if code == INTERRUPTED:
            return code
        if (learnt := read(question)) is None:
            return _unfinished(question, console) or code
        rounds.append(Round(question, learnt))
        further = _further(rounds, console)
        if further is None:
            return _tell(rounds, arguments) or code
        question = further


def _further(rounds: "list[Round]", console: "Console") -> "ScreenQuestion | None":
    """Print the results of the last round. Return the question of the next round, or None if there is none."""
    from cpdrun.search.allocate.words import table, verdict_lines

    question, found = rounds[-1].question, rounds[-1].found
    console.print(table(question, found), width=max(console.width, 110), crop=False)
    for line in verdict_lines(question, found):
        console.print(line, soft_wrap=True, markup=False)
    chosen = _chosen(rounds)
    return question.next_round(chosen.levels) if chosen is not None else None


def _launch(
    session: "Session",
    question: "ScreenQuestion",
    to_run: "list[PlannedRun]",
    options: "LaunchOptions",
    arguments: argparse.Namespace,
) -> int:
    """Train the runs of one round of a screen, and return the exit code."""
    from cpdrun.launch import Display, Job, axes_of, print_summary
    from cpdrun.search.allocate.certify import write_rows
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
    with writing(directory.path):  # usually because the disk is full
        summary = session.launch(directory, jobs, configs[0]["launcher"], options, display, before)
    print_summary(output.progress, summary)
    return INTERRUPTED if summary.interrupted else summary.exit_code


def _chosen(rounds: "list[Round]") -> "Allocation | None":
    """Return the allocation of bits that the rounds so far lead to, or None if there is none."""
    from cpdrun.search.allocate.allocation import allocate
    from cpdrun.search.allocate.words import costs_of

    question, found = rounds[-1].question, rounds[-1].found
    steps = [each.step for each in rounds]
    return allocate(costs_of(question), steps, found.tolerance, question.settings.confidence)


def _unfinished(question: "ScreenQuestion", console: "Console") -> int:
    """Print how many runs of a round have no result, and return the exit code."""
    from cpdrun.search.allocate.results import missing

    console.print(
        f"{missing(question)} runs have no result yet: effects are of the whole design. Type it again."
    )
    return FAILED


def _tell(rounds: "list[Round]", arguments: argparse.Namespace) -> int:
    """Print the allocation and the command that certifies it, and return the exit code."""
    from cpdrun.search.allocate.certify import write_allocation
    from cpdrun.search.allocate.words import allocation_lines, facts

    console = arguments.output.console
    question, chosen = rounds[-1].question, _chosen(rounds)
    for line in allocation_lines(rounds, chosen):
        console.print(line, soft_wrap=True, markup=False)
    command = None
    if chosen is not None:
        with writing(question.directory.path):
            command = write_allocation(rounds, chosen)
        console.print(f"To certify it: {command}", soft_wrap=True, markup=False)
    arguments.output.set_result({**facts(question, rounds, chosen, command), "dry_run": False})
    return OK
