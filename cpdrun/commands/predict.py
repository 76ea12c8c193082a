"""`cpdrun predict`: what every format would do to a run's tensors, and how likely it misses the tolerance."""

import argparse
from typing import TYPE_CHECKING

from cpdrun.arguments import add_json, add_overrides, positive
from cpdrun.commands.launching import add_options, cancelled_before, may_start, options_of
from cpdrun.errors import FAILED, INTERRUPTED, OK, UserError, before_a_start, writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from cpdrun.launch import LaunchOptions, Session
    from cpdrun.predict.forecast import Line
    from cpdrun.predict.words import Said
    from cpdrun.search.observed import Observation
    from cpdrun.search.question import Question

WIDEST = 1000  # columns of a table


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    predict = commands.add_parser(
        "predict",
        help="what formats would do, from one observed run of the baseline",
        description="Train the baseline once, observed; say of every format of the experiment what it would do to "
        "those gradients, weights and activations, and how likely it misses the tolerance. Nothing is certified: "
        "cpdrun search does that, and reuses the run.",
        epilog="Example: cpdrun predict exp=digits_bits; of a run that was observed: cpdrun predict RUN "
        "format=e4m3,e3m0 aps=false,true",
    )
    add_overrides(predict, "exp=NAME, key=value, key=a,b,c for an axis; or first the folder or name of a run")
    steps = "observe the first N steps alone, of a run of so many"
    predict.add_argument("--steps", type=positive, metavar="N", help=steps)
    predict.add_argument("--dry-run", action="store_true", help="say what would be trained, and stop")
    add_json(predict)
    law = "fit laws of loss and of workers to finished runs of these sweeps, or of committed references"
    predict.add_argument("--law", nargs="+", metavar="SWEEP", help=law)
    at = "where to ask them: world_size=1024, or parameters=1e9,data=2e10, or model.width=512,max_steps=5000"
    predict.add_argument("--at", action="append", default=[], metavar="KEY=NUMBER,...", help=at)
    add_options(predict)
    return predict


def run(arguments: argparse.Namespace) -> int:
    if arguments.law:
        return _laws(arguments)
    if arguments.at:
        raise UserError("--at asks a law: cpdrun predict --law SWEEP --at world_size=1024")
    if not arguments.overrides:
        raise UserError(
            "say what to predict: cpdrun predict exp=NAME, such as exp=digits_bits, or cpdrun predict RUN"
        )
    console = arguments.telling.console
    if "=" not in arguments.overrides[0]:
        return _of_run(arguments, console)
    from cpdrun.launch import Session

    with Session() as session:
        return _of_experiment(arguments, options_of(arguments), session, console)


def _laws(arguments: argparse.Namespace) -> int:
    """Nothing is trained: the runs are there."""
    from cpdrun.predict.law import laws

    if arguments.overrides or arguments.steps or arguments.dry_run:
        raise UserError("--law is of finished runs: it takes sweeps, --at and --json alone")
    said = laws(arguments.law, arguments.at)
    arguments.telling.tell({**said.facts, "says": said.sentences}, "law")
    for line in said.sentences:
        arguments.telling.console.print(line, soft_wrap=True, markup=False, highlight=False)
    return OK


def _of_experiment(
    arguments: argparse.Namespace, options: "LaunchOptions", session: "Session", console: "Console"
) -> int:
    from cpdrun.predict.effects import refuse_diverged
    from cpdrun.predict.words import Said
    from cpdrun.search.observed import lines, observations
    from cpdrun.search.question import ask
    from cpdrun.search.results import Results
    from cpdrun.search.words import candidates_text, tolerance_of
    from cpdrun.sweep import listed

    with before_a_start():
        if not arguments.dry_run:
            session.warm_up()  # importing torch takes longer than planning
        question = ask(arguments.overrides, arguments.config_dir, imports=not arguments.dry_run)
        listed(question.directory)
        found = observations(question, arguments.steps)
        tolerance = tolerance_of(Results(question))
    console.print(
        f"Which is at most {tolerance} worse than {question.baseline_name}? {candidates_text(question)}",
        soft_wrap=True,
    )
    for note in filter(None, (each.note for each in found)):
        arguments.telling.note(note)
    missing = [each for each in found if not each.is_there]
    if arguments.dry_run:
        _say_what_would_be(console, found, arguments)
        return OK
    if missing:
        code = _train(session, question, missing, options, arguments)
        if code != OK:
            return code
    for each in found:
        refuse_diverged(each.folder)
    said = Said(tolerance, question.baseline_name, tuple(str(each.folder.path) for each in found))
    with writing(question.directory.path):
        predicted = lines(question, found, Results(question).strictness)
    _say(console, predicted, said, arguments)
    return OK


def _of_run(arguments: argparse.Namespace, console: "Console") -> int:
    from cpdrun.predict.effects import refuse_diverged
    from cpdrun.predict.variants import lines_of_run
    from cpdrun.predict.words import Said
    from cpdrun.record import find_runs

    if arguments.steps or arguments.dry_run:
        raise UserError("--steps and --dry-run are of runs to train; this one is there")
    name, *words = arguments.overrides
    folders = [word for word in words if word.startswith("results_dir=")]
    [run] = find_runs([name, *folders])
    refuse_diverged(run)
    with writing(run.path):
        predicted, tolerance = lines_of_run(run, [word for word in words if word not in folders])
    _say(console, predicted, Said(tolerance, "the run itself", (str(run.path),)), arguments)
    return OK


def _say(
    console: "Console", predicted: "Sequence[Line]", said: "Said", arguments: argparse.Namespace
) -> None:
    """The answers come last, where they are seen."""
    from cpdrun.predict.words import facts, sentences, table

    found = table(predicted)
    if not console.is_terminal:  # a file has room
        console.width = max(
            console.width, console.measure(found, options=console.options.update(width=WIDEST)).maximum
        )
    console.print(found)
    for line in sentences(predicted, said):
        console.print(line, soft_wrap=True, markup=False)
    telling = arguments.telling
    telling.tell({"dry_run": False, **facts(predicted, said), "notes": telling.notes})


def _say_what_would_be(
    console: "Console", found: "Sequence[Observation]", arguments: argparse.Namespace
) -> None:
    for each in found:
        how = "is there, observed" if each.is_there else "would be trained, observed"
        console.print(f"{each.folder.path} {how}", soft_wrap=True, markup=False)
    runs = [
        {"run": str(each.folder.path), "is_there": each.is_there, "serves": list(each.serves)}
        for each in found
    ]
    arguments.telling.tell({"dry_run": True, "runs": runs, "notes": arguments.telling.notes})


def _train(
    session: "Session",
    question: "Question",
    missing: "Sequence[Observation]",
    options: "LaunchOptions",
    arguments: argparse.Namespace,
) -> int:
    """Train the observed runs, those that a sweep can use in its folder and list. The exit code."""
    from cpdrun.launch import Display, Job, axes_of, print_summary
    from cpdrun.sweep import write_manifest

    telling, config_dir = arguments.telling, arguments.config_dir
    configs = [each.run.config for each in missing]
    code = OK
    for directory in dict.fromkeys(each.sweep for each in missing):
        here = [each for each in missing if each.sweep == directory]
        before = cancelled_before(directory, arguments)
        if not may_start(session, directory, configs, options, before, config_dir, telling):
            return INTERRUPTED
        if directory == question.directory:
            with writing(directory.path):
                write_manifest(question.as_plan([each.run for each in here]))
        jobs = [Job(each.folder, each.run.config, each.run.overrides) for each in here]
        display = Display(
            telling.progress, axes_of(question.directory) if directory.manifest.exists() else ()
        )
        with writing(directory.path):
            summary = session.launch(directory, jobs, configs[0]["launcher"], options, display, before)
        print_summary(telling.progress, summary)
        code = max(code, summary.exit_code)
    if code == OK and (lost := [each for each in missing if not each.is_there]):
        telling.note(f"{lost[0].folder.path} ended without an observation", kind="error")
        return FAILED
    return code
