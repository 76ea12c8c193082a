"""What the runs of a screen left, and the effects that follow."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cpdrun.config.errors import ConfigError
from cpdrun.record import Ending, Result
from cpdrun.search.allocate.allocation import Step
from cpdrun.search.allocate.question import ScreenQuestion
from cpdrun.stats.screening import Effects, effects
from cpdrun.study.margin import choose_margin, course_of
from cpdrun.study.metric import Metric
from cpdrun.study.runs.learnt import worst


@dataclass(frozen=True)
class Found:
    """All runs have ended. values_NxS: the metric of each row and seed, that of a diverged run being `worst`."""

    metric: Metric
    values_NxS: list[list[float]]
    worst: float
    diverged: list[tuple[int, int]]  # row and seed
    effects: Effects
    tolerance: float  # in the metric's unit

    def blamed(self, question: ScreenQuestion) -> list[str]:
        """The factors that were low in every run that diverged, where there are several such runs."""
        rows = {row for row, _ in self.diverged}
        low = [set(question.low(row)) for row in rows]
        common = set.intersection(*low) if len(rows) > 1 else set()
        return [question.factors[i].name for i in sorted(common)]


@dataclass(frozen=True)
class Round:
    question: ScreenQuestion
    found: Found

    @property
    def step(self) -> Step:
        return Step(self.question.varied, self.found.effects)


def missing(question: ScreenQuestion) -> int:
    """Runs that have not ended with a result."""
    return sum(question.directory.run(run.name).result() is None for run in question.runs)


def read(question: ScreenQuestion) -> Found | None:
    """Return the effects, None until all runs have ended.

    Raises ConfigError for a metric that they do not have, and for a margin under which nothing may be certified.
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
    """Return the margin as it is shown. A relative one refers to the row with the fewest low factors. Raises
    ConfigError."""
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
