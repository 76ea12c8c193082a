"""The command `cpdrun search`.

It certifies, with few runs, the format with the fewest bits that is worse than the baseline by at most the margin.
"""

import argparse
from collections.abc import Sequence
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
    from cpdrun.launch import LaunchOptions, Session, Summary
    from cpdrun.search.question import Question
    from cpdrun.search.results import Results

DOCUMENTS = {"search": "cpdrun.report.search_text:SearchDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    search = commands.add_parser(
        "search",
        help="find and certify the smallest format that is good enough",
        description="Train the formats of an experiment and its baseline with as many seeds as needed, until each "
        "format is certified to be at most the margin worse than the baseline, or refuted. You may stop "
        "it, look at the results and continue at any time: the confidence stays valid.",
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
    add_options(search, "or slurm, to which runs are submitted in rounds")
    add_mode(search, "--plan", "list the runs that the search would start next")
    add_mode(search, "--allocate", "find the layers that need more bits, and allocate bits to layers")
    return search


def run(arguments: argparse.Namespace) -> int:
    if arguments.overrides:
        arguments.output.announce("Planning the search ...")
    from cpdrun.launch import Session

    with Session() as session:
        return _search(arguments, options_of(arguments), session)


def _search(arguments: argparse.Namespace, options: "LaunchOptions", session: "Session") -> int:
    """Train runs until the search is decided, and return the exit code."""
    from cpdrun.report.search_text import describe_question
    from cpdrun.search.loop import RunQueue, parallel_runs
    from cpdrun.search.results import sweep_record
    from cpdrun.sweep import write_question

    output = arguments.output
    results = _ask(arguments, options, session)
    directory = results.question.directory
    output.print_lines(describe_question(results))
    launcher = next(iter(results.cells.values()))[0].config["launcher"]
    slots = parallel_runs(results, launcher, options)
    summaries: list[Summary] = []
    forecast: list[str] = []
    code = OK
    if arguments.dry_run:
        forecast = _forecast(results, slots)
    else:
        with writing(directory.path):
            write_question(directory, sweep_record(results))
        if RunQueue(results).wanted(1, ahead=False):
            code, summaries = _launch(session, results, options, arguments)
            code = FAILED if code == OK and results.margin.problem else code
    _show_results(results, arguments, code, forecast, summaries)
    return code


def _ask(arguments: argparse.Namespace, options: "LaunchOptions", session: "Session") -> "Results":
    """Plan the search, and return its results, which include runs that have already finished.

    Raises:
        UserError: The overrides or the margin are not valid.
    """
    from cpdrun.config.script import seed_note
    from cpdrun.launch import Job
    from cpdrun.launch.executors import advice
    from cpdrun.search.question import ask
    from cpdrun.search.results import Results
    from cpdrun.search.settings import MARGIN_KEY
    from cpdrun.sweep import listed

    with before_a_start():
        if not arguments.overrides:
            raise UserError("name an experiment to search: cpdrun search exp=digits_bits")
        if not arguments.dry_run:
            session.warm_up()  # start importing torch, which takes longer than planning
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
    advised = advice(jobs[0].config["launcher"], question.directory, jobs, options)
    for line in [*advised, *seed_note(planned[0].config, question.typed)]:
        arguments.output.note(line)
    return results


def _forecast(results: "Results", slots: int | None) -> list[str]:
    """Return lines about the likely cost, and notes about ambiguous format names."""
    from custom_fp.formats.synonyms import naming_notes

    from cpdrun.config.overrides import flatten
    from cpdrun.report.search_text import describe_cost
    from cpdrun.search.plan import forecast_cost

    configs = [cell[0].config for cell in results.cells.values()]
    lines = describe_cost(results, forecast_cost(results, slots), slots)
    return [*lines, *naming_notes(value for config in configs for _, value in flatten(config))]


def _launch(
    session: "Session", results: "Results", options: "LaunchOptions", arguments: argparse.Namespace
) -> "tuple[int, list[Summary]]":
    """Run the search if all of its cells can be trained.

    Returns:
        The exit code, and a summary of each round of runs.
    """
    from cpdrun.commands.search_display import SearchDisplay
    from cpdrun.launch import axes_of, print_summary
    from cpdrun.search.loop import search

    directory, output = results.question.directory, arguments.output
    configs = with_min_coverage(results.question, [cell[0].config for cell in results.cells.values()])
    before = cancelled_before(directory, arguments)
    if not may_start(session, directory, configs, options, before, arguments.config_dir, output):
        return INTERRUPTED, []
    display = SearchDisplay(output.progress, axes_of(directory), results)
    with writing(directory.path):  # If writing fails, the disk is usually full.
        summaries = search(session, results, configs[0]["launcher"], options, display, before, display.on_end)
    for summary in summaries:
        print_summary(output.progress, directory, summary)
    return max((summary.exit_code for summary in summaries), default=FAILED), summaries


def _show_results(
    results: "Results",
    arguments: argparse.Namespace,
    code: int,
    forecast: list[str],
    summaries: "list[Summary]",
) -> None:
    """Print the answers, the table, the cost and the next command.

    Raises:
        UserError: The requested report could not be written. The results have been printed already.
    """
    from cpdrun.report import fork_text
    from cpdrun.report.search_text import SearchDocument, describe_results, make_table, next_step
    from cpdrun.report.study_text import margin_text
    from cpdrun.report.write import print_table
    from cpdrun.search.results import search_result

    output, trouble, report = arguments.output, None, ""
    if arguments.report and not arguments.dry_run and code != INTERRUPTED and results.runs:
        try:
            report = _write_report(results)
        except UserError as error:
            trouble = error
    lines, ladders = describe_results(results), len(results.question.ladders)
    output.print_lines(lines[:ladders])
    result = search_result(results)
    if results.runs:
        output.console.print(make_table(results))
    output.print_lines(lines[ladders:])
    of_forks = fork_text.sentences(result.fork_tests, results.metric, result.confidence)
    if of_forks:
        output.print_lines(of_forks)
        print_table(output.console, fork_text.shown(result.fork_tests, results.metric))
    output.print_lines([*forecast, *([report] if report else []), next_step(results)])
    output.set_result(
        SearchDocument(
            **vars(result),
            margin=margin_text(results.margin, results.metric),
            says=[*lines, *of_forks],
            dry_run=arguments.dry_run,
            forecast=forecast,
            summaries=summaries,
            notes=output.notes,
        )
    )
    if trouble is not None:
        raise trouble


def _write_report(results: "Results") -> str:
    """Write the report, and return a line with the path of its page."""
    from rich.console import Console

    from cpdrun.report import write_report

    console = Console(quiet=True)  # The report would print the same answers again.
    made = write_report([results.question.directory], formats=["md", "csv", "html"], console=console)
    return f"Tables and plots: open {made.page}"


def with_min_coverage(question: "Question", configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add `min_coverage` to the configs of candidates whose precision settings differ from the baseline's."""
    candidates = [each for ladder in question.ladders for width in ladder.widths for each in width]
    pairs = [(question.config(each.name), question.config(each.baseline)) for each in candidates]
    checked = [
        ours["precision"] for ours, theirs in pairs if ours.get("precision") != theirs.get("precision")
    ]
    least = {"min_coverage": question.settings.min_coverage}
    return [config | least if config.get("precision") in checked else config for config in configs]
