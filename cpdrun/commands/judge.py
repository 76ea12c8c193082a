"""The command `cpdrun judge`, which gives a verdict on results that need not come from cpdrun."""

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cpdrun.arguments import add_json, positive
from cpdrun.errors import OK, UserError

if TYPE_CHECKING:
    from cpdrun.study.judge.candidates import Boundary, JudgedArm, JudgeQuestion
    from cpdrun.study.judge.session import Decision, SessionState

DOCUMENTS = {"judge": "cpdrun.commands.judge_document:JudgeDocument"}
# The decision about an idea, by its verdict.
DECISIONS = {"certified": "keep", "refuted": "drop", "open": "undecided"}
# The sentence about how runs were paired, by the kind of pairing.
PAIRED = {
    "seeds": "",
    "order": "No seed is in both arms, so runs were paired in the order of their seeds.",
    "shuffled": "The table has no seeds, so runs were paired at random. Decide on the number of runs before you look; "
    "with seeds you may look after every run.",
    "target": "",
}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    judge = commands.add_parser(
        "judge",
        help="the verdict for results from anywhere: CSV, JSON lines or stdin",
        description="Say of every arm of a table whether it is at most a margin worse than the baseline, or better "
        "than it, and how sure that is. The table has an arm, a seed and a value in each row, or one column per arm.",
        epilog="Example: cpdrun judge results.csv --baseline fp32 --margin 2%%",
    )
    judge.add_argument("file", metavar="FILE", help="CSV, JSON lines or a JSON list; - reads stdin")
    against = judge.add_mutually_exclusive_group(required=True)
    against.add_argument("--baseline", metavar="ARM", help="the arm that the others are compared with")
    against.add_argument("--target", type=_number, metavar="X", help="a value to compare every arm with")
    boundary = judge.add_mutually_exclusive_group(required=True)
    worse = "how much worse is still good enough: 0.05, or 2%% of the baseline's mean"
    boundary.add_argument("--margin", metavar="X", help=worse)
    better = "ask instead whether a candidate is better by more than this; 0 asks whether it is better"
    boundary.add_argument("--better-by", metavar="X", help=better)
    judge.add_argument("--lower-is-better", action="store_true", help="for losses, errors and times")
    only = "judge only this arm; may be repeated. Default: every arm except the baseline"
    judge.add_argument("--candidate", action="append", default=[], metavar="ARM", help=only)
    judge.add_argument("--arm", metavar="COLUMN", help="the column of arms; default: arm")
    judge.add_argument("--seed", metavar="COLUMN", help="the column of seeds; default: seed")
    judge.add_argument("--value", metavar="COLUMN", help="the column of values; default: value")
    state = "a column of states; a run that is not finished or running counts as failed"
    judge.add_argument("--state", metavar="COLUMN", help=state)
    stated = "the known standard deviation between runs of one arm; the verdict is conditional on it"
    judge.add_argument("--sd", type=_positive_number, metavar="X", help=stated)
    step = (
        "the step in which values count, such as 1/360 = 0.00278 for an accuracy on 360 examples; default: one unit "
        "of the last digit written"
    )
    judge.add_argument("--resolution", type=_positive_number, metavar="X", help=step)
    worst = "what a failed run counts as; default: the worst value of the table"
    judge.add_argument("--worst", type=_number, metavar="X", help=worst)
    judge.add_argument("--confidence", type=_percent, metavar="PERCENT", help="default: 95")
    session = (
        "a file that keeps account of a stream of ideas, so that at most 5 %% of the kept ones are false"
    )
    judge.add_argument("--session", metavar="FILE", help=session)
    planned = "how many ideas a session is planned for; default: 100. It is fixed by the session's first call"
    judge.add_argument("--ideas", type=positive, metavar="N", help=planned)
    name = "the idea's name in the session; default: the candidate's arm"
    judge.add_argument("--idea", metavar="NAME", help=name)
    add_json(judge)
    return judge


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.commands.judge_document import JudgeDocument, candidate_documents, session_document
    from cpdrun.study.judge.candidates import checked_margin, judge_candidates
    from cpdrun.study.judge.session import judge_ideas
    from cpdrun.study.judge.table import Columns, read_table

    question = _question(arguments)
    columns = Columns(arguments.arm, arguments.seed, arguments.value, arguments.state)
    table = read_table(arguments.file, columns, needs_arms=question.target is None)
    if arguments.resolution is None:
        question = replace(question, resolution=table.step)
    margin = checked_margin(table, question)
    standing = None
    if arguments.session is None:
        judged = judge_candidates(table, question)
    else:
        settings = {"confidence": arguments.confidence, "planned": arguments.ideas}
        typed = {key: value for key, value in settings.items() if value is not None}
        standing = judge_ideas(arguments.session, table, question, typed, arguments.idea)
        judged = [decision.judged for decision in standing.decisions]
        question = replace(question, confidence=standing.settings.confidence)
    sentences = list(_sentences(question, margin, judged, standing))
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
            candidates=candidate_documents(judged, question.confidence, standing),
            session=None if standing is None else session_document(arguments.session, standing),
            says=sentences,
            notes=arguments.output.notes,
        )
    )
    return OK


def _question(arguments: argparse.Namespace) -> "JudgeQuestion":
    """Return the question that the arguments ask.

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
        arguments.lower_is_better,
        95.0 if arguments.confidence is None else arguments.confidence,
        arguments.sd,
        arguments.resolution or 0.0,
        arguments.worst,
        tuple(arguments.candidate),
    )


def _boundary(text: str, option: str, is_improvement: bool) -> "Boundary":
    """Return the value of --margin or --better-by.

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
        raise UserError(f"{option} {text}: it must be below 100 % of the baseline's value.")
    return Boundary(number, is_relative, is_improvement)


def _sentences(
    question: "JudgeQuestion", margin: float, judged: "list[JudgedArm]", standing: "SessionState | None"
) -> Iterator[str]:
    yield _asked(question, margin, len(judged), standing)
    decisions = standing.decisions if standing is not None else [None] * len(judged)
    for each, decision in zip(judged, decisions, strict=True):
        yield _answer(each, question, decision)
    if standing is not None:
        yield from _of_session(standing)
    yield from _assumptions(question, judged, is_session=standing is not None)


def _asked(question: "JudgeQuestion", margin: float, count: int, standing: "SessionState | None") -> str:
    direction = "lower" if question.lower_is_better else "higher"
    against = _against(question)
    boundary = question.boundary
    of = "the target" if question.baseline is None else f"the mean of {against}"
    origin = f" ({boundary.number:g} % of {of})" if boundary.is_relative else ""
    asked = "better by more than" if boundary.is_improvement else "worse by at most"
    error = f"{100 - question.confidence:g} %"
    shared = f"{error} error probability"
    if standing is not None:
        shared = f"at most {100 - standing.settings.confidence:g} % of the kept ideas are false"
    elif count > 1:
        shared = f"{error} error probability, shared by {count} candidates"
    return f"Is it {asked} {abs(margin):.4g}{origin} than {against}? {direction.capitalize()} is better; {shared}."


def _against(question: "JudgeQuestion") -> str:
    return f"the target {question.target:g}" if question.baseline is None else question.baseline


def _answer(judged: "JudgedArm", question: "JudgeQuestion", decision: "Decision | None") -> str:
    """Return the verdict on an arm with its numbers.

    The numbers are the mean difference and its interval, the interval from the arm's own pairs, and a bound on the rate
    of failures.
    """
    from cpdrun.report.failures_text import failure_bound_text

    judgement, counts = judged.judgement, judged.pairs.counts
    word = str(judged.verdict) if decision is None else DECISIONS[decision.verdict]
    parts = [f"{judged.candidate}: {word}."]
    pairs = f"{judgement.pairs} pair{'s' if judgement.pairs != 1 else ''}"
    if question.target is not None:
        pairs = pairs.replace("pair", "run")
    if not judgement.pairs:
        parts.append(f"There is no {pairs.split()[-1].rstrip('s')} to compare.")
    else:
        own = _interval(judgement.own_low, judgement.own_high)
        on_own = f"; on its own spread {own}" if judgement.prior.degrees else ""
        interval = _interval(judgement.low, judgement.high)
        parts.append(f"{judgement.mean:+.3g} {interval} ({pairs}{on_own}).")
    if counts.ended:
        parts.append(f"{failure_bound_text(counts, question.confidence)}.")
    if judged.pairs.is_barred:
        parts.append("A candidate with failed runs is not certified.")
    elif judged.verdict == "open" and judgement.more is not None and judgement.more.likely and word != "keep":
        noun = "runs" if question.target is not None else "pairs"
        parts.append(f"Further {noun} that are likely to settle it: {judgement.more}.")
    if decision is not None and not decision.idea.is_kept:
        parts.append(
            f"Its evidence is {_power(decision.idea.log_evidence)}; it needs {_power(decision.required)}."
        )
    return " ".join(parts)


def _interval(low: float, high: float) -> str:
    return f"[{low:+.3g}, {high:+.3g}]" if math.isfinite(high - low) else "[no interval yet]"


def _power(log: float) -> str:
    """Return an e-value as text, given its natural logarithm. The value itself may be too large for a float."""
    return f"{math.exp(log):.3g}" if log < 700 else f"1e+{log / math.log(10):.0f}"


def _of_session(standing: "SessionState") -> Iterator[str]:
    planned = standing.settings.planned
    kept = f"{len(standing.kept)} kept ({', '.join(standing.kept)})" if standing.kept else "none kept"
    yield f"Session: {standing.ideas} of {planned} planned ideas judged, {kept}."
    if standing.also_kept:
        yield f"Also keep now, because the kept ideas lower what others need: {', '.join(standing.also_kept)}."


def _assumptions(question: "JudgeQuestion", judged: "list[JudgedArm]", *, is_session: bool) -> Iterator[str]:
    """Yield sentences about the assumptions on which the numbers depend."""
    from cpdrun.report.failures_text import left_out_text

    if question.run_deviation is not None:
        yield (
            f"Conditional on the stated standard deviation of {question.run_deviation:g} between runs; the interval on "
            "its own spread does not use it."
        )
    elif any(each.judgement.prior.degrees for each in judged):
        others = "other ideas" if is_session else "other arms"
        yield f"The first interval pools the spread of the {others}; the second uses only the candidate's own pairs."
    elif any(each.judgement.pairs == 1 for each in judged):
        yield "One pair has no spread of its own. Add a seed, or state the noise between runs with --sd."
    for each in judged:
        if line := PAIRED[each.pairs.pairing]:
            yield line
            break
    for each in judged:
        if left_out := left_out_text(each.pairs.counts):
            yield f"{each.candidate}: {left_out}."
        if each.pairs.unmatched:
            runs = f"{each.pairs.unmatched} run{'s' if each.pairs.unmatched != 1 else ''}"
            yield f"{each.candidate}: {runs} left out because the baseline has no run to compare with."
    if any(each.pairs.failed for each in judged):
        worst = "the worst value of the table" if question.worst is None else f"{question.worst:g}"
        yield f"In the gap, a failed run counts as {worst} (--worst)."


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
