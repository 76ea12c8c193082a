"""Read the results of the runs of a screen and estimate the effects."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cpdrun.config.errors import ConfigError
from cpdrun.record import Ending, Result
from cpdrun.search.allocate.allocation import Step
from cpdrun.search.allocate.question import ScreenQuestion
from cpdrun.stats.screening import Effects, effects
from cpdrun.study.margin import choose_margin, course_of
from cpdrun.study.metric import Metric, worst


@dataclass(frozen=True)
class Found:
    """The results of a round after all its runs have ended.

    Attributes:
        metric: The metric.
        values_NxS: The metric of each row and seed. Diverged runs have the value `worst`.
        worst: The value that stands for a diverged run.
        diverged: The row and seed of each diverged run.
        effects: The effects of the factors.
        tolerance: The margin in the metric's unit.
    """

    metric: Metric
    values_NxS: list[list[float]]
    worst: float
    diverged: list[tuple[int, int]]
    effects: Effects
    tolerance: float

    def blamed(self, question: ScreenQuestion) -> list[str]:
        """Return the names of the factors that were low in every diverged run, if at least two rows diverged."""
        rows = {row for row, _ in self.diverged}
        low = [set(question.low(row)) for row in rows]
        common = set.intersection(*low) if len(rows) > 1 else set()
        return [question.factors[i].name for i in sorted(common)]


@dataclass(frozen=True)
class Round:
    """A round of a screen with its results."""

    question: ScreenQuestion
    found: Found

    @property
    def step(self) -> Step:
        """The measured losses of the factors that varied."""
        return Step(self.question.varied, self.found.effects)


def missing(question: ScreenQuestion) -> int:
    """Return the number of runs that have not ended with a result."""
    return sum(question.directory.run(run.name).result() is None for run in question.runs)


def read(question: ScreenQuestion) -> Found | None:
    """Return the results, or None until all runs have ended.

    Raises:
        ConfigError: The runs do not have the metric, or nothing may be certified under the margin.
    """
    results = [[question.directory.run(run.name).result() for run in row] for row in question.rows]
    ended = [each for row in results for each in row if each is not None]
    if len(ended) < sum(map(len, results)) or not ended:
        return None
    metric = _metric(question, ended)
    values = [[_value(each, metric) for each in row] for row in results]
    healthy = [value for row in values for value in row if math.isfinite(value)]
    asked = question.settings
    classes = next((float(each.num_classes) for each in ended if each.num_classes), math.nan)
    tolerance = _margin(question, metric, values, classes) / metric.scale
    bad = worst(metric, classes, healthy, tolerance)
    diverged = list(_where(values))
    filled = [[value if math.isfinite(value) else bad for value in row] for row in values]
    sign = -1.0 if metric.higher_is_better else 1.0
    worse = [[sign * value for value in row] for row in filled]
    found = effects(question.design, worse, margin=tolerance, confidence=asked.confidence)
    return Found(metric, filled, bad, diverged, found, tolerance)


def _margin(question: ScreenQuestion, metric: Metric, values_NxS: list[list[float]], classes: float) -> float:
    """Return the margin in the unit in which it is shown.

    A relative margin refers to the row with the fewest low factors.

    Raises:
        ConfigError: The margin cannot be used.
    """
    rows = [row for row, values in enumerate(values_NxS) if math.isfinite(values[0])]
    courses = []
    if rows:
        nearest = min(rows, key=lambda row: len(question.low(row)))
        run = question.directory.run(question.rows[nearest][0].name)
        courses = [course_of(run, metric, values_NxS[nearest][0], classes)]
    margin = choose_margin(
        question.settings.tolerance, "asked for", metric, courses, "the row nearest to fp32"
    )
    if margin.problem:
        raise ConfigError(margin.problem)
    return margin.shown


def _metric(question: ScreenQuestion, ended: list[Result]) -> Metric:
    asked, first = question.settings.metric, ended[0]
    name = asked or first.judge or next(iter(first.metrics), "test_accuracy")
    if name not in first.metrics:
        raise ConfigError(f"screen.metric={name}: the runs have {', '.join(sorted(first.metrics))}")
    return Metric(name, first.measures.get(name))


def _value(done: Result, metric: Metric) -> float:
    value = done.metrics.get(metric.name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and done.status is not Ending.DIVERGED else math.nan


def _where(values_NxS: list[list[float]]) -> Iterator[tuple[int, int]]:
    for row, values in enumerate(values_NxS):
        for seed, value in enumerate(values):
            if not math.isfinite(value):
                yield row, seed
