"""Read the results of a screen, choose its allocation, and write its files.

A screen writes an experiment with its runs, the allocation, and an experiment for the search that tests it.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from cpdrun.config.errors import ConfigError
from cpdrun.record import Ending, Result, write_text
from cpdrun.search.allocate.allocation import Allocation, Costs, Price, Step, allocate
from cpdrun.search.allocate.factors import FP32
from cpdrun.search.allocate.question import CASE, ScreenQuestion, copy_yaml, write_experiment
from cpdrun.search.settings import Level
from cpdrun.stats.screening import Effects, Sensitivity, effects
from cpdrun.study import formats
from cpdrun.study.margin import choose_margin, course_of
from cpdrun.study.metric import Metric, worst

# The cases of the experiment that tests an allocation, next to fp32 and the uniform formats.
ALLOCATED, ALL_LOW = "allocated", "all low"
SEARCH_SEEDS = 3  # the seeds in the written experiment; a search chooses its own


@dataclass(frozen=True)
class RoundResult:
    """The results of a round whose runs have all ended.

    Attributes:
        metric: The metric.
        worst: The value that replaces the metric of a diverged run.
        diverged: (row, seed) of each diverged run.
        effects: The effects of the factors that varied, in the order of the design's columns.
        tolerance: The margin in the metric's stored unit.
    """

    metric: Metric
    worst: float
    diverged: list[tuple[int, int]]
    effects: Effects
    tolerance: float

    def blamed(self, question: ScreenQuestion) -> list[str]:
        """Return the factors that were low in all diverged runs, if at least two rows diverged."""
        rows = {row for row, _ in self.diverged}
        low = [set(question.low(row)) for row in rows]
        common = set.intersection(*low) if len(rows) > 1 else set()
        return [question.factors[i].name for i in sorted(common)]

    def by_effect(self) -> list[int]:
        """Return the indices of the effects, most harmful factor first."""
        return sorted(range(len(self.effects.factors)), key=lambda i: -self.effects.factors[i].mean)


@dataclass(frozen=True)
class Round:
    """A round of a screen with its results."""

    question: ScreenQuestion
    found: RoundResult

    @property
    def step(self) -> Step:
        """The measured effects in the form that the allocation reads."""
        return Step(self.question.varied, self.found.effects)


def missing_runs(question: ScreenQuestion) -> int:
    """Return the number of the round's runs without a result."""
    return sum(question.directory.run(run.name).result() is None for run in question.runs)


def read(question: ScreenQuestion) -> RoundResult | None:
    """Return the results of a round if all its runs have ended.

    Raises:
        ConfigError: The runs do not have the metric, or the margin is not valid.
    """
    results = [[question.directory.run(run.name).result() for run in row] for row in question.rows]
    ended = [each for row in results for each in row if each is not None]
    if len(ended) < sum(map(len, results)) or not ended:
        return None
    metric = _metric(question, ended)
    values = [[_value(each, metric) for each in row if each is not None] for row in results]
    healthy = [value for row in values for value in row if math.isfinite(value)]
    asked = question.settings
    classes = next((float(each.num_classes) for each in ended if each.num_classes), math.nan)
    tolerance = _margin(question, metric, values, classes) / metric.scale
    bad = worst(metric, classes, healthy, tolerance)
    diverged = [
        (n, s) for n, row in enumerate(values) for s, value in enumerate(row) if not math.isfinite(value)
    ]
    sign = -1.0 if metric.higher_is_better else 1.0
    worse = [[sign * (value if math.isfinite(value) else bad) for value in row] for row in values]
    found = effects(question.design, worse, margin=tolerance, confidence=asked.confidence)
    return RoundResult(metric, bad, diverged, found, tolerance)


def _margin(question: ScreenQuestion, metric: Metric, values_NxS: list[list[float]], classes: float) -> float:
    """Return the margin in the metric's displayed unit.

    There may be no baseline run. A margin in percent then refers to the row with the fewest low factors whose first run
    did not diverge.

    Raises:
        ConfigError: The margin is not valid.
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
        raise ConfigError(
            f"screen.metric={name} is not a metric of the runs, which have {', '.join(sorted(first.metrics))}"
        )
    return Metric(name, first.measures.get(name))


def _value(done: Result, metric: Metric) -> float:
    value = done.metrics.get(metric.name)
    is_healthy = isinstance(value, int | float) and done.status is not Ending.DIVERGED
    return float(value) if value is not None and is_healthy else math.nan


def costs_of(question: ScreenQuestion) -> Costs:
    return Costs(question.settings, question.groups, question.factors, question.layers)


def choose_allocation(rounds: Sequence[Round]) -> Allocation | None:
    """Return the allocation after these rounds, if any factor may be low."""
    question, found = rounds[-1].question, rounds[-1].found
    steps = [each.step for each in rounds]
    return allocate(costs_of(question), steps, found.tolerance, question.settings.confidence)


def uniform_prices(question: ScreenQuestion) -> list[tuple[str, float, Price]]:
    """Return (name, bits, price) of each uniform format to compare the allocation with."""
    found = []
    for level in question.settings.uniform:
        bits = float(formats.bits(level["format"]) or math.nan)
        found.append((level_name(level), bits, costs_of(question).uniform(bits)))
    return found


def level_name(level: Level) -> str:
    """Return the name of a level: `e3m0`, `e3m0 with APS`, or `mxfp4 rounding=stochastic`."""
    extra = [f"{key}={value}" for key, value in level.items() if key not in ("format", "aps")]
    extra += ["with APS"] if level.get("aps") else []
    return " ".join([str(level["format"]), *extra])


# ---- The results as plain data


@dataclass(frozen=True)
class EffectResult:
    """The measured effect of a factor.

    Attributes:
        factor: The name of the factor.
        round: The round in which the effect was measured.
        cost: How much worse the metric is one level lower, in its stored unit.
        low: The lower end of the confidence interval of `cost`.
        high: The upper end of the confidence interval of `cost`.
        verdict: Whether the factor is sensitive, harmless, or open.
    """

    factor: str
    round: int
    cost: float
    low: float
    high: float
    verdict: Sensitivity


@dataclass(frozen=True)
class AllocationResult:
    """The chosen levels, their loss, and their cost.

    Attributes:
        low: The names of the low factors.
        high: The names of the high factors.
        levels: The name of each factor's level.
        expected: The expected total loss, in the metric's stored unit.
        bound: The upper confidence bound of the total loss, in the same unit.
        cost: The cost in units of `unit`.
        unit: The unit of the cost.
        mean_bits: The mean bits of a sent gradient value, or of an operand.
        all_low: The cost if every factor is as low as the screen allows.
        all_high: The cost if every factor is high.
        case: The config values of the allocation.
    """

    low: list[str]
    high: list[str]
    levels: dict[str, str]
    expected: float
    bound: float
    cost: float
    unit: str
    mean_bits: float
    all_low: float
    all_high: float
    case: dict[str, Any]


@dataclass(kw_only=True)
class ScreenResult:
    """The results of a screen.

    Differences are in the metric's stored unit, and larger differences are worse. Without a finished round, the results
    are None.

    Attributes:
        sweep: The folder of the sweep.
        factors: The names of the factors.
        round: The number of the last round that was reached.
        rows: The number of rows of that round's design.
        runs: The number of planned runs so far.
        most_runs: The maximum number of runs of the whole screen.
        metric: The name of the metric.
        effects: The effects of all rounds, the most harmful of each round first.
        method: The method that estimated their standard error.
        tolerance: The margin.
        diverged: The number of diverged runs.
        allocation: The allocation, if there is one.
        certify: The command that tests the allocation.
    """

    sweep: str
    factors: list[str]
    round: int
    rows: int
    runs: int
    most_runs: int
    metric: str | None
    effects: list[EffectResult] | None
    method: str | None
    tolerance: float | None
    diverged: int | None
    allocation: AllocationResult | None
    certify: str | None


def screen_result(
    question: ScreenQuestion, rounds: Sequence[Round], chosen: Allocation | None, command: str | None
) -> ScreenResult:
    """Return the results of a screen as plain data.

    The last round that was reached, `question`, may not have ended. `command` tests the allocation.
    """
    found = rounds[-1].found if rounds else None
    return ScreenResult(
        sweep=str(question.directory.path),
        factors=[factor.name for factor in question.factors],
        round=question.number,
        rows=question.design.runs,
        runs=len(question.plan.runs),
        most_runs=len(question.plan.runs) - len(question.runs) + question.most_runs(),
        metric=found.metric.name if found else None,
        effects=effect_results(rounds) if found else None,
        method=_methods(rounds) if found else None,
        tolerance=found.tolerance if found else None,
        diverged=sum(len(each.found.diverged) for each in rounds) if found else None,
        allocation=allocation_result(question, chosen) if chosen else None,
        certify=command,
    )


def effect_results(rounds: Sequence[Round]) -> list[EffectResult]:
    """Return all effects as plain data, the most harmful of each round first."""
    found = []
    for each in rounds:
        for i in each.found.by_effect():
            effect, factor = each.found.effects.factors[i], each.question.factors[each.question.varied[i]]
            found.append(
                EffectResult(
                    factor.name, each.question.number, effect.mean, effect.low, effect.high, effect.verdict
                )
            )
    return found


def _methods(rounds: Sequence[Round]) -> str:
    return "; then ".join(dict.fromkeys(each.found.effects.method for each in rounds))


def allocation_result(question: ScreenQuestion, chosen: Allocation) -> AllocationResult:
    """Return the allocation as plain data."""
    factors = list(enumerate(question.factors))
    return AllocationResult(
        low=[question.factors[i].name for i in chosen.low],
        high=[factor.name for i, factor in factors if i not in chosen.low],
        levels={
            factor.name: level_name(question.settings.level(factor.role, chosen.levels.get(i, 0)))
            for i, factor in factors
        },
        expected=chosen.expected,
        bound=chosen.bound,
        cost=chosen.price.cost,
        unit=chosen.price.unit,
        mean_bits=chosen.price.mean_bits,
        all_low=chosen.all_low.cost,
        all_high=chosen.all_high.cost,
        case=question.cases.of(chosen.levels),
    )


# ---- Files


def write_rows(question: ScreenQuestion) -> None:
    """Write the runs of the screening experiment as an experiment file with a named case for each run.

    A user can then repeat one run: `cpdrun sweep --config-dir FOLDER exp=NAME case='row 01'`.

    Raises:
        OSError: A file cannot be written.
    """
    folder = question.directory.screen
    copy_yaml(question.config_dir, folder)
    about = f"The runs of `cpdrun search --allocate exp={question.experiment}`, which wrote this file.\n"
    seeds = question.settings.drawn
    write_experiment(folder, question.experiment, about, _body(question), question.by_case(), seeds)


def write_allocation(rounds: Sequence[Round], chosen: Allocation) -> str:
    """Write the allocation and an experiment that tests it, and return the command for that.

    Raises:
        OSError: A file cannot be written.
    """
    question, found = rounds[-1].question, rounds[-1].found
    asked = question.settings
    name = f"{question.experiment}_{ALLOCATED}"
    uniform = {f"{level_name(level)} everywhere": question.cases.uniform(level) for level in asked.uniform}
    cases = {FP32: question.cases.baseline(), **uniform, ALLOCATED: question.cases.of(chosen.levels)}
    # The bound is conservative: even the lowest levels may be good enough.
    if (lowest := costs_of(question).lowest()) != chosen.levels:
        cases[ALL_LOW] = question.cases.of(lowest)
    search: dict[str, Any] = {
        k: v for k, v in question.search.items() if v is not None and k not in ("tune", "budget")
    }
    search |= {"baseline": {CASE: FP32}, "tolerance": found.tolerance * found.metric.scale}
    search |= {"metric": found.metric.name}
    about = f"The allocation of `cpdrun search --allocate exp={question.experiment}`, which wrote this file."
    folder = question.directory.screen
    write_experiment(folder, name, about, _body(question), cases, range(SEARCH_SEEDS), search)
    command = _command(question, name)
    facts = {
        "experiment": question.experiment,
        "command": command,
        "effects": [{**asdict(each), "verdict": str(each.verdict)} for each in effect_results(rounds)],
        "method": _methods(rounds),
        "metric": found.metric.name,
        "tolerance": found.tolerance,
        "allocation": asdict(allocation_result(question, chosen)),
    }
    write_text(
        question.directory.allocation, yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=120)
    )
    return command


def _body(question: ScreenQuestion) -> dict[str, Any]:
    """Return the experiment's content with the screen's sweep name. Its runs then share a folder with the screen's."""
    return question.body | {"name": question.directory.name}


def _command(question: ScreenQuestion, name: str) -> str:
    words = [word for word in question.words if not word.startswith("exp=")]
    typed = ["cpdrun", "search", "--config-dir", str(question.directory.screen), f"exp={name}", *words]
    return shlex.join(typed)
