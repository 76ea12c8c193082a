"""The command `cpdrun judge`, which gives a verdict on results from anywhere."""

import argparse
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from cpdrun.arguments import add_json, positive
from cpdrun.errors import OK, UserError

if TYPE_CHECKING:
    from cpdrun.study.judge.candidates import Boundary, JudgeQuestion
    from cpdrun.study.judge.session import SessionState

DOCUMENTS = {"judge": "cpdrun.commands.judge_document:JudgeDocument"}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    judge = commands.add_parser(
        "judge",
        help="give a verdict on results from anywhere: CSV, JSON lines or stdin",
        description="Compare the arms of a table with a baseline. For each arm, say whether it is at most a margin "
        "worse than the baseline (or better than it), and how certain that is. Each row of the table has an arm, a "
        "seed and a value, or each row is a seed and has one column per arm.",
        epilog="Example: cpdrun judge results.csv --baseline fp32 --margin 2%",
    )
    judge.add_argument("file", metavar="FILE", help="CSV, JSON lines or a JSON list; - reads stdin")
    against = judge.add_mutually_exclusive_group(required=True)
    against.add_argument("--baseline", metavar="ARM", help="the arm that the others are compared with")
    against.add_argument(
        "--target", type=_number, metavar="X", help="compare every arm with this value instead"
    )
    boundary = judge.add_mutually_exclusive_group(required=True)
    worse = "how much worse is still good enough: 0.05, or 2%% of the baseline's mean"
    boundary.add_argument("--margin", metavar="X", help=worse)
    better = "ask instead whether an arm is better than the baseline by more than this; 0: whether it is better at all"
    boundary.add_argument("--better-by", metavar="X", help=better)
    direction = judge.add_mutually_exclusive_group()
    lower = "lower values are better, as for losses, errors and times. Default: what is usual for the column of values"
    direction.add_argument("--lower-is-better", action="store_true", help=lower)
    higher = (
        "higher values are better. Default, unless the column of values is called loss, error or the like"
    )
    direction.add_argument("--higher-is-better", action="store_true", help=higher)
    only = "judge only this arm; may be repeated. Default: every arm except the baseline"
    judge.add_argument("--candidate", action="append", default=[], metavar="ARM", help=only)
    judge.add_argument("--arm", metavar="COLUMN", help="the column of arms; default: arm")
    judge.add_argument("--seed", metavar="COLUMN", help="the column of seeds; default: seed")
    judge.add_argument("--value", metavar="COLUMN", help="the column of values; default: value")
    state = (
        "the column that says how a run ended. A run that is still running is left out; any other that did not finish "
        "counts as failed"
    )
    judge.add_argument("--state", metavar="COLUMN", help=state)
    stated = "the standard deviation between runs of one arm, if you know it. The verdict then depends on this number"
    judge.add_argument("--sd", type=_positive_number, metavar="X", help=stated)
    step = (
        "the smallest step between two values, such as 1/360 = 0.00278 for an accuracy on 360 examples; default: one "
        "unit of the last digit written"
    )
    judge.add_argument("--resolution", type=_positive_number, metavar="X", help=step)
    worst = "the value that a failed run counts as; default: the worst value of the table"
    judge.add_argument("--worst", type=_number, metavar="X", help=worst)
    judge.add_argument(
        "--confidence", type=_percent, metavar="PERCENT", help="how certain a verdict must be; default: 95"
    )
    session = (
        "a file that keeps a record of every idea, so that on average at most 5%% of the kept ones are false "
        "discoveries"
    )
    judge.add_argument("--session", metavar="FILE", help=session)
    planned = "how many ideas the session is planned for; default: 100. The first call fixes it"
    judge.add_argument("--ideas", type=positive, metavar="N", help=planned)
    name = "the idea's name in the session; default: the candidate's arm"
    judge.add_argument("--idea", metavar="NAME", help=name)
    add_json(judge)
    return judge


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.commands.judge_document import DECISIONS, JudgeDocument, candidate_documents, session_document
    from cpdrun.report.judge_text import judge_sentences
    from cpdrun.study.judge.candidates import (
        checked_margin,
        is_share_margin_for_percentages,
        judge_candidates,
    )
    from cpdrun.study.judge.session import judge_ideas
    from cpdrun.study.judge.table import Columns, read_table

    columns = Columns(arguments.arm, arguments.seed, arguments.value, arguments.state)
    direction = _usual_direction(arguments)
    question = _question(arguments, lower_is_better=arguments.lower_is_better or direction == "min")
    table = read_table(arguments.file, columns, needs_arms=question.target is None)
    if arguments.resolution is None:
        question = replace(question, resolution=table.step)
    margin = checked_margin(table, question)
    if direction == "min":
        arguments.output.note(
            f"Lower is better, as the name of the column {arguments.value!r} suggests. Otherwise, add "
            "--higher-is-better."
        )
    if direction == "max" and is_share_margin_for_percentages(table, question):
        arguments.output.note(
            f"The values look like percentages, so the margin is {margin:g} percentage points. A margin of one "
            "percentage point is written as 1."
        )
    session: SessionState | None = None
    if arguments.session is None:
        judged = judge_candidates(table, question)
    else:
        settings = {"confidence": arguments.confidence, "planned": arguments.ideas}
        typed = {key: value for key, value in settings.items() if value is not None}
        session = judge_ideas(arguments.session, table, question, typed, arguments.idea)
        judged = [decision.judged for decision in session.decisions]
        question = replace(question, confidence=session.settings.confidence)
    sentences = judge_sentences(question, margin, judged, session, DECISIONS)
    for line in sentences:
        arguments.output.print(line)
    arguments.output.set_result(
        JudgeDocument(
            file=table.name,
            baseline=question.baseline,
            target=question.target,
            lower_is_better=question.lower_is_better,
            margin=margin,
            confidence=question.confidence,
            candidates=candidate_documents(judged, question.confidence, session),
            session=None if session is None else session_document(arguments.session, session),
            says=sentences,
            notes=arguments.output.notes,
        )
    )
    return OK


def _usual_direction(arguments: argparse.Namespace) -> str | None:
    """Return "min" or "max" for the column of values, from its name. None if it is unknown or was typed."""
    from cpdrun.config.script import direction_of

    if arguments.lower_is_better or arguments.higher_is_better:
        return None
    return direction_of(arguments.value or "", {})


def _question(arguments: argparse.Namespace, *, lower_is_better: bool) -> "JudgeQuestion":
    """Return the comparison that the arguments specify.

    Raises:
        UserError: The margin cannot be read, or an option of a session was given without --session.
    """
    from cpdrun.study.judge.candidates import JudgeQuestion

    if arguments.session is None and (arguments.ideas is not None or arguments.idea is not None):
        raise UserError("--ideas and --idea need --session FILE.")
    is_improvement = arguments.better_by is not None
    typed = arguments.better_by if is_improvement else arguments.margin
    return JudgeQuestion(
        _boundary(typed, "--better-by" if is_improvement else "--margin", is_improvement),
        arguments.baseline,
        arguments.target,
        lower_is_better,
        95.0 if arguments.confidence is None else arguments.confidence,
        arguments.sd,
        arguments.resolution or 0.0,
        arguments.worst,
        tuple(arguments.candidate),
    )


def _boundary(text: str, option: str, is_improvement: bool) -> "Boundary":
    """Parse the value of --margin or --better-by.

    Raises:
        UserError: The text is not a finite number of at least 0, or is a percentage of 100 or more.
    """
    from cpdrun.study.judge.candidates import Boundary

    is_relative = text.strip().endswith("%")
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{option} {text}: a number such as 0.05, or a percentage such as 2%, is needed.")
    if number < 0:
        hint = "" if is_improvement else f" To ask for an improvement, use --better-by {-number:g}."
        raise UserError(f"{option} {text}: it must not be negative.{hint}")
    if is_relative and number >= 100:
        raise UserError(f"{option} {text}: it must be below 100% of the baseline's value.")
    return Boundary(number, is_relative, is_improvement)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}")
    return number


def _positive_number(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text!r}")
    return number


def _percent(text: str) -> float:
    number = _number(text)
    if not 50 <= number < 100:
        raise argparse.ArgumentTypeError(f"must be at least 50 and below 100, not {text!r}")
    return number
