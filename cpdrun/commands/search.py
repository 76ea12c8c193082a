"""The command `cpdrun search`.

It finds the smallest format that is at most a margin worse than the baseline, and certifies it with few runs.
"""

import argparse
from typing import TYPE_CHECKING, Any

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
    from rich.console import Console

    from cpdrun.launch import LaunchOptions, Session, Summary
    from cpdrun.search.results import Results

DOCUMENTS = {"search": "cpdrun.search.documents:SearchDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    search = commands.add_parser(
        "search",
        help="find and certify the smallest format that is good enough",
        description="Train the formats of an experiment and its baseline with as many seeds as needed, until each "
        "format in question is certified to be within the margin, or refuted. You may stop it, look at the results "
        "and continue at any time: the confidence stays valid.",
        epilog="Example: cpdrun search exp=digits_bits search.tolerance=1",
    )
    add_overrides(search, "exp=NAME, key=value, key=a,b,c for an axis, or search.key=value")
    budget = "at most N runs in total, or a core time T such as 2h or 90min (search.budget)"
    search.add_argument("--budget", metavar="T|N", help=budget)
    search.add_argument(
        "--dry-run", action="store_true", help="print what is known and what the search may cost, and stop"
    )
    add_json(search)
    search.add_argument("--report", action="store_true", help="also write tables, plots and the HTML page")
    add_options(search, "or slurm, which gets rounds of runs")
    add_mode(search, "--plan", "list the runs that the search would start next")
    add_mode(search, "--allocate", "find the layers that need more bits, and allocate bits to layers")
    return search


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.launch import Session

    with Session() as session:
        return _search(arguments, options_of(arguments), session)


def _search(arguments: argparse.Namespace, options: "LaunchOptions", session: "Session") -> int:
    """Ask the question, train the runs that answer it, print the results, and return the exit code."""
    from cpdrun.launch import Job
    from cpdrun.launch.executors import advice
    from cpdrun.search.drive import Driver
    from cpdrun.search.question import ask
    from cpdrun.search.results import Results
    from cpdrun.search.settings import MARGIN_KEY
    from cpdrun.search.tuned_words import asked
    from cpdrun.sweep import listed, write_question

    with before_a_start():
        if not arguments.overrides:
            raise UserError("say what to search: cpdrun search exp=NAME, such as exp=digits_bits")
        if not arguments.dry_run:
            session.warm_up()  # importing torch takes longer than planning
        budget = [f"search.budget={arguments.budget}"] if arguments.budget else []
        words = [*words_of(arguments), *budget]
        question = ask(words, arguments.config_dir, imports=not arguments.dry_run)
        listed(question.directory)
        planned = [run for cell in question.cells.values() for run in cell.values()]
        runs = [(question.directory.run(run.name), run.config) for run in planned]
        for line in read_metrics_again(runs, dry_run=arguments.dry_run):
            arguments.output.print(line)
        results = Results(question)
        if results.margin.problem:
            raise UserError(f"{MARGIN_KEY}: {results.margin.problem}")
    jobs = [Job(question.directory.run(run.name), run.config, run.overrides) for run in planned]
    for line in advice(jobs[0].config["launcher"], question.directory, jobs, options):
        arguments.output.note(line)
    console = arguments.output.console
    code, forecast, summaries = OK, list[Any](), list[Any]()
    _say_what_is_asked(console, results)
    if not arguments.dry_run:
        with writing(question.directory.path):
            write_question(question.directory, asked(results))
    if arguments.dry_run:
        forecast, code = _dry_run(console, results, options), OK
    elif Driver(results).asks(1, ahead=False):
        code, summaries = _launch(session, results, options, arguments)
        if code == OK and results.margin.problem:
            code = FAILED
    _say_what_was_found(results, arguments, code, forecast, summaries)
    return code


def _say_what_is_asked(console: "Console", results: "Results") -> None:
    """Print the question of the search, its margin, and how many earlier candidates share the error probability."""
    from cpdrun.report.study_text import margin_text
    from cpdrun.search.tuned_words import plan_text
    from cpdrun.search.words import candidates_text, runs_text, tolerance_of

    question = results.question
    asked = question.settings
    budget = f", for at most {asked.budget}" if asked.budget else ""
    console.print(
        f"Which is at most {tolerance_of(results)} worse than {question.baseline_name}, at {asked.confidence:g} % "
        f"confidence{budget}? {candidates_text(question)}; {plan_text(results)}{runs_text(results)} here before",
        soft_wrap=True,
    )
    console.print(f"Margin: {margin_text(results.margin, results.metric)}.", soft_wrap=True, markup=False)
    asked_now = {candidate.name for chain in question.chains for width in chain.widths for candidate in width}
    before = {each.candidate for each in results.ledger.hypotheses} - asked_now
    if before:
        count = f"{len(before)} more candidate{'s' if len(before) > 1 else ''}"
        console.print(
            f"This sweep was asked about {count} before, which keep their share of the error probability.",
            soft_wrap=True,
        )
    for line in question.axis.said:
        console.print(line, soft_wrap=True, markup=False)


def _say_what_was_found(
    results: "Results",
    arguments: argparse.Namespace,
    code: int,
    forecast: list[str],
    summaries: "list[Summary]",
) -> None:
    """Print the results. The answers come last, so that they are at the end of the screen.

    Raises:
        UserError: The report could not be written. The error is raised after the results have been printed.
    """
    from cpdrun.search.words import facts, sentences, table

    console, output = arguments.output.console, arguments.output
    report, trouble = "", None
    try:
        report = _report(arguments, code, results)
    except UserError as error:
        trouble = error
    lines, chains = sentences(results), len(results.question.chains)
    if results.runs:
        console.print(table(results))
    for line in filter(None, [report, *lines[chains:], *lines[:chains]]):
        console.print(line, soft_wrap=True)
    went = {
        "dry_run": arguments.dry_run,
        "forecast": forecast,
        "summaries": [summary.document() for summary in summaries],
    }
    output.set_result({**facts(results), **went, "notes": output.notes})
    if trouble is not None:
        raise trouble


def _report(arguments: argparse.Namespace, code: int, results: "Results") -> str:
    """Return a line that says where the report is, or which command makes it.

    With --report, the report is written first. The line is empty if there is nothing to report yet.
    """
    from cpdrun.search.words import report_command

    if arguments.dry_run or code == INTERRUPTED or not results.runs:
        return ""
    if not arguments.report:
        return report_command(results)
    from rich.console import Console

    from cpdrun.report import write_report

    console = Console(quiet=True)  # because the report would print the same answer again
    made = write_report([results.question.directory], formats=["md", "csv", "html"], console=console)
    return f"Tables and plots: open {made.page}"


def _dry_run(console: "Console", results: "Results", options: "LaunchOptions") -> list[str]:
    """Print what is known and what the search may cost, and return the printed lines."""
    from custom_fp.formats.synonyms import naming_notes

    from cpdrun.config.keys import flatten
    from cpdrun.search.drive import at_once
    from cpdrun.search.forecast import forecast

    configs = [cell[0].config for cell in results.question.cells.values()]
    lines = list(forecast(results, at_once(results, configs[0]["launcher"], options)))
    lines += naming_notes(value for config in configs for _, value in flatten(config))
    for line in lines:
        console.print(line, soft_wrap=True)
    return lines


def _launch(
    session: "Session",
    results: "Results",
    options: "LaunchOptions",
    arguments: argparse.Namespace,
) -> "tuple[int, list[Summary]]":
    """Check whether the cells can be trained, and then search.

    Returns:
        The exit code, and the summary of each round of runs.
    """
    from cpdrun.launch import axes_of, print_summary
    from cpdrun.search.drive import SearchDisplay, search

    question, output, config_dir = results.question, arguments.output, arguments.config_dir
    configs = [cell[0].config for cell in question.cells.values()]
    before = cancelled_before(question.directory, arguments)
    if not may_start(session, question.directory, configs, options, before, config_dir, output):
        return INTERRUPTED, []
    display = SearchDisplay(output.progress, axes_of(question.directory), results)
    with writing(question.directory.path):  # usually because the disk is full
        summaries = search(session, results, configs[0]["launcher"], options, display, before)
    for summary in summaries:
        print_summary(output.progress, summary)
    return max((summary.exit_code for summary in summaries), default=FAILED), summaries
