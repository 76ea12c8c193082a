"""The command `cpdrun predict`.

It ranks formats by the errors that they cause in the tensors of an observed run, and estimates how likely each format
is to fail.
"""

import argparse
from typing import TYPE_CHECKING

from cpdrun.arguments import add_json, add_overrides, positive
from cpdrun.commands.launching import add_options, cancelled_before, may_start, options_of
from cpdrun.errors import FAILED, INTERRUPTED, OK, UserError, before_a_start, writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cpdrun.launch import LaunchOptions, Session
    from cpdrun.report.prediction import Context
    from cpdrun.search.question import Question
    from cpdrun.whatif.baseline_runs import BaselineRun
    from cpdrun.whatif.forecast import LadderForecast

DOCUMENTS = {"predict": "cpdrun.report.prediction:PredictDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    predict = commands.add_parser(
        "predict",
        help="rank formats from one observed run of the baseline",
        description="Train the baseline once and observe its gradients, weights and activations. Compute what each "
        "format of the experiment does to them, rank the formats, and estimate how likely each one fails. Candidates "
        "that were trained in the sweep's folder make the estimate more precise. Nothing is certified: cpdrun search "
        "does that, and reuses the run.",
        epilog="Example: cpdrun predict exp=digits_bits. For a run that was observed: cpdrun predict RUN "
        "format=e4m3,e3m0 aps=false,true",
    )
    add_overrides(
        predict,
        "exp=NAME, key=value, key=a,b,c for an axis; or instead of exp=NAME, the name or folder of an observed run",
    )
    steps = "train and observe a run of N steps only"
    predict.add_argument("--steps", type=positive, metavar="N", help=steps)
    predict.add_argument(
        "--dry-run", action="store_true", help="list the runs that would be trained, and stop"
    )
    add_json(predict)
    # These options were removed. `run` tells the user what to use instead.
    predict.add_argument("--law", nargs="*", help=argparse.SUPPRESS)
    predict.add_argument("--at", nargs="*", help=argparse.SUPPRESS)
    add_options(predict)
    return predict


def run(arguments: argparse.Namespace) -> int:
    if arguments.law is not None or arguments.at is not None:
        raise UserError(
            "--law and --at were removed: the laws were too uncertain to use. Train the sizes that you need with "
            "cpdrun sweep or cpdrun search (world_size=8,64), and compare them with cpdrun report"
        )
    if not arguments.overrides:
        raise UserError("name an experiment or a run: cpdrun predict exp=digits_bits, or cpdrun predict RUN")
    console = arguments.output.console
    if "=" not in arguments.overrides[0]:
        return _predict_variants(arguments, console)
    from cpdrun.launch import Session

    with Session() as session:
        return _predict_experiment(arguments, options_of(arguments), session, console)


def _predict_experiment(
    arguments: argparse.Namespace, options: "LaunchOptions", session: "Session", console: "Console"
) -> int:
    """Predict how likely the candidates of an experiment are to fail.

    Missing baseline runs are trained and observed first.
    """
    from cpdrun.report.prediction import Context
    from cpdrun.report.search_text import describe_candidates, tolerance_text
    from cpdrun.search.initial_width import subject_ladder
    from cpdrun.search.question import ask
    from cpdrun.search.results import Results, pair_differences
    from cpdrun.sweep import listed
    from cpdrun.whatif.baseline_runs import find_baseline_runs, forecast_ladders, trained_outcomes
    from cpdrun.whatif.effects import check_not_diverged

    with before_a_start():
        if not arguments.dry_run:
            session.warm_up()  # start importing torch, which takes longer than planning
        question = ask(arguments.overrides, arguments.config_dir, imports=not arguments.dry_run)
        listed(question.directory)
        found = find_baseline_runs(question.directory, question.baseline_runs, arguments.steps)
        margin = tolerance_text(Results(question))
    candidates = describe_candidates(question)
    arguments.output.print_lines(
        [f"Which format is at most {margin} worse than {question.baseline_name}? {candidates}"]
    )
    for note in filter(None, (each.note for each in found)):
        arguments.output.note(note)
    missing = [each for each in found if not each.is_there]
    if arguments.dry_run:
        _list_runs(found, arguments)
        return OK
    if missing:
        code = _train(session, question, missing, options, arguments)
        if code != OK:
            return code
    for each in found:
        check_not_diverged(each.folder)
    results = Results(question)
    context = Context(
        tolerance_text(results), question.baseline_name, tuple(str(each.folder.path) for each in found)
    )
    outcomes = trained_outcomes(pair_differences(results), results.rules().tolerance, results.metric.scale)
    with writing(question.directory.path):
        subjects = [subject_ladder(question, ladder) for ladder in question.ladders]
        ladders = forecast_ladders(question.directory, subjects, found, results.strictness, outcomes)
    _show(console, ladders, context, arguments)
    return OK


def _predict_variants(arguments: argparse.Namespace, console: "Console") -> int:
    """Predict how likely variants of one observed run are to fail."""
    from cpdrun.record import find_runs
    from cpdrun.report.prediction import Context
    from cpdrun.whatif.effects import check_not_diverged
    from cpdrun.whatif.variants import forecast_variants

    if arguments.steps or arguments.dry_run:
        raise UserError("--steps and --dry-run need an experiment: the named run has already been trained")
    name, *words = arguments.overrides
    folders = [word for word in words if word.startswith("results_dir=")]
    [run] = find_runs([name, *folders])
    check_not_diverged(run)
    with writing(run.path):
        ladders, margin = forecast_variants(run, [word for word in words if word not in folders])
    _show(console, ladders, Context(margin, "the run itself", (str(run.path),)), arguments)
    return OK


def _show(
    console: "Console", ladders: "Sequence[LadderForecast]", context: "Context", arguments: argparse.Namespace
) -> None:
    """Print the table before the sentences, so that the answer is at the end of the screen."""
    from cpdrun.report.prediction import make_table, predict_document, summarize
    from cpdrun.shell.terminal import widen

    table = make_table(ladders)
    if not console.is_terminal:  # because a file has no maximum width
        widen(console, table)
    console.print(table)
    output = arguments.output
    output.print_lines(summarize(ladders, context))
    output.set_result(predict_document(ladders, context, output.notes))


def _list_runs(found: "Sequence[BaselineRun]", arguments: argparse.Namespace) -> None:
    from cpdrun.report.prediction import ObservedRun, PredictDocument

    for each in found:
        how = "is trained and observed" if each.is_there else "would be trained and observed"
        arguments.output.print_lines([f"{each.folder.path} {how}"])
    runs = [ObservedRun(str(each.folder.path), each.is_there, list(each.serves)) for each in found]
    arguments.output.set_result(PredictDocument(dry_run=True, notes=arguments.output.notes, runs=runs))


def _train(
    session: "Session",
    question: "Question",
    missing: "Sequence[BaselineRun]",
    options: "LaunchOptions",
    arguments: argparse.Namespace,
) -> int:
    """Train and observe the missing runs, and return the exit code.

    Those in the folder of the experiment's sweep are then done, so a later sweep or search skips them.
    """
    from cpdrun.launch import Display, Job, axes_of, print_summary
    from cpdrun.sweep import write_manifest

    output, config_dir = arguments.output, arguments.config_dir
    configs = [each.run.config for each in missing]
    code = OK
    for directory in dict.fromkeys(each.sweep for each in missing):
        here = [each for each in missing if each.sweep == directory]
        before = cancelled_before(directory, arguments)
        if not may_start(session, directory, configs, options, before, config_dir, output):
            return INTERRUPTED
        if directory == question.directory:
            with writing(directory.path):
                write_manifest(question.as_plan([each.run for each in here]))
        jobs = [Job(each.folder, each.run.config, each.run.overrides) for each in here]
        display = Display(output.progress, axes_of(question.directory) if directory.manifest.exists() else ())
        with writing(directory.path):
            summary = session.launch(directory, jobs, configs[0]["launcher"], options, display, before)
        print_summary(output.progress, directory, summary)
        code = max(code, summary.exit_code)
    if code == OK and (lost := [each for each in missing if not each.is_there]):
        output.note(f"{lost[0].folder.path} ended without an observation", kind="error")
        return FAILED
    return code
