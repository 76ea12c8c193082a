"""Choose the margin: how much worse than the baseline is still good enough.

A margin is a number in the metric's unit, or a percentage. The unit of shares, which are metrics between 0 and 1 such
as accuracy, is the percentage point. A percentage refers to the baseline's final value, or to its improvement over the
untrained model, whichever is smaller. The final value alone would allow too much for losses with a large constant part.
The improvement alone would allow too much for perplexities that start far above their final value.

The untrained model is one that guesses if the number of classes is known. Otherwise, its value is the first logged one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

from cpdrun.config.margin import Typed
from cpdrun.record import RunDir
from cpdrun.study.metric import Metric, guess
from cpdrun.study.records import checkpoint_of

DEFAULT = "2%"  # This is the default margin for metrics that are not shares.
DEFAULT_POINTS = 0.5  # This is the default margin for shares, in percentage points.
# A margin above this share of the baseline's improvement would let a format pass that hardly learned.
LARGEST_SHARE = 0.5


@dataclass(frozen=True)
class Course:
    """The metric of one baseline run before and after training, in the stored unit.

    Attributes:
        final: The value after training.
        untrained: The value before training. NaN if it is unknown.
        source: The origin of `untrained`: "a guess", "the first logged value", or "" if it is unknown.
        starts_trained: Whether the run starts from a checkpoint (`init_from`), so that its improvement may be small.
    """

    final: float
    untrained: float = math.nan
    source: str = ""
    starts_trained: bool = False

    def improvement(self, metric: Metric) -> float:
        """Return how much better the final value is than the untrained one. NaN if unknown."""
        return (self.final - self.untrained) * (1 if metric.higher_is_better else -1)


def course_of(run: RunDir, metric: Metric, final: float, classes: float) -> Course:
    """Return the metric of a run before and after training.

    The run's log is read if the number of classes is unknown (NaN).
    """
    by_chance = guess(metric, classes)
    if math.isfinite(by_chance):
        return Course(final, by_chance, "a guess")
    first = math.nan
    try:
        for row in run.logged():
            value = row.metrics.get(metric.name)
            if value is None or not math.isfinite(value):
                continue
            if math.isfinite(first):  # If no second value followed, the first value would be the final one.
                return Course(final, first, "the first logged value", checkpoint_of(run) is not None)
            first = value
    except (OSError, RecursionError):  # The file may be missing or unreadable, or may be a folder.
        pass
    return Course(final)


@dataclass(frozen=True)
class Margin:
    """The margin of a search or a report.

    Attributes:
        shown: The margin in the unit in which the metric is shown. NaN if it is unknown or invalid; nothing is
            certified then.
        origin: The source of the margin for parentheses, such as "typed" or "the default".
        problem: Why the margin is invalid and what to type instead. None if it is valid.
    """

    shown: float = math.nan
    origin: str = ""
    problem: str | None = None


def choose_margin(
    asked: Typed | None, asked_by: str, metric: Metric, courses: Sequence[Course], baseline: str
) -> Margin:
    """Return the margin. If there are several baselines, return the smallest of their margins.

    Args:
        asked: The margin that was typed or is in a file. None for the default.
        asked_by: The origin of `asked`, such as "typed".
        metric: The compared metric.
        courses: The metric of one run of each baseline, before and after training. Empty if none has ended.
        baseline: The name of the baseline for messages.

    Returns:
        The margin. If it is invalid for one baseline, `Margin.problem` says why.
    """
    is_default = asked is None
    if asked is None:
        asked = DEFAULT_POINTS if metric.is_fraction else DEFAULT
        asked_by = "the default"
    if not courses:
        return _before_a_run(asked, asked_by, baseline)
    found = [_margin(asked, asked_by, is_default, metric, course, baseline) for course in courses]
    with_problem = (margin for margin in found if margin.problem)
    return next(with_problem, min(found, key=lambda margin: margin.shown))


def _before_a_run(asked: Typed, asked_by: str, baseline: str) -> Margin:
    if not isinstance(asked, str):
        return Margin(asked, asked_by)
    what = f"of {baseline}'s final value or of its improvement, whichever is smaller"
    return Margin(math.nan, f"{asked} {what} ({asked_by}; known when its first run has ended)")


def _margin(
    asked: Typed, asked_by: str, is_default: bool, metric: Metric, course: Course, baseline: str
) -> Margin:
    name, final = metric.name, _short(course.final * metric.scale)
    path = f"{_short(course.untrained * metric.scale)} ({course.source}) to {final}"
    improvement = course.improvement(metric)
    if metric.is_fraction and course.source != "a guess":
        # The first logged value does not limit the margin of a share. The model may learn nearly everything in the
        # first epoch, and the unit of the margin, points, is known anyway.
        improvement = math.nan
    if course.starts_trained and not is_default:
        improvement = math.nan  # A trained model hardly improves any more.
    if isinstance(asked, str):
        if metric.is_fraction:
            return _no_margin(
                f"{name} is a share, so {asked} is ambiguous. Type the margin in points, such as 0.5"
            )
        if is_default and math.isnan(improvement):
            return _no_margin(
                f"nobody typed a margin, and {name} was logged only once, so that {baseline}'s improvement is unknown "
                f"and there is no default. Type how much worse than {baseline}'s {final} is still good enough, in the "
                f"unit of {name}: search.tolerance=NUMBER, or --tol NUMBER for a report"
            )
        whole = min(abs(course.final), math.inf if math.isnan(improvement) else improvement)
        shown = _floor(float(asked.removesuffix("%")) / 100 * whole)
        of = f"improvement from {path}" if whole == improvement else f"final value {final}"
        origin = f"{asked} of {baseline}'s {of}, {asked_by}"
    else:
        shown, origin = asked, asked_by
    if improvement <= 0:
        return _no_margin(
            f"{baseline} itself did not improve: its {name} went from {path}{_hint(course, name)}"
        )
    if math.isnan(improvement) and not metric.is_fraction and shown > LARGEST_SHARE * abs(course.final):
        unknown = f"{name} was logged only once, so that nothing tells how much {baseline} learned"
        way_out = f", or let the script log {name} once before it trains"
        if course.starts_trained:
            unknown, way_out = "the runs start from a checkpoint", ""
        return _no_margin(
            f"the margin {metric.show_tolerance(shown)} is more than half of {baseline}'s own {name}, {final}, and "
            f"{unknown}. Type a smaller margin, in the unit of {name} or as a percentage such as 2%{way_out}"
        )
    if shown / metric.scale > LARGEST_SHARE * improvement:
        return _no_margin(
            f"the margin {metric.show_tolerance(shown)} is more than half of {baseline}'s own improvement, and a "
            f"format that hardly learned would pass: {name} went from {path}. Type a smaller margin, in the unit of "
            f"{name} or as a percentage such as 2%{_hint(course, name)}"
        )
    if not shown > 0:
        return _no_margin(f"{asked} of {baseline}'s {name} {final} is 0: type a number in the unit of {name}")
    return Margin(shown, origin)


def _no_margin(problem: str) -> Margin:
    return Margin(math.nan, "no valid margin", problem)


def _hint(course: Course, name: str) -> str:
    if course.source == "a guess":
        return ""
    return f". If the model had learned much by then, let the script log {name} once before it trains"


def _short(value: float) -> str:
    return f"{value:.4g}"


def _floor(value: float) -> float:
    """Round down to three significant digits, so that the shown margin is the used one."""
    if not (value > 0 and math.isfinite(value)):
        return value
    exact = Decimal(repr(value))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=ROUND_FLOOR))
