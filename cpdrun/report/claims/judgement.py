"""From a claim and the values of runs to a verdict: held, contradicted, open, or not asked.

A comparison is held where the interval of its difference lies wholly within the claim's threshold, contradicted where
it lies wholly outside, open otherwise. Differences are paired by seed. Bytes have no interval: they are counted.

A claim of `every` comparison is held where all are, and contradicted where one is; the more comparisons, the likelier
one strays by chance, so what contradicts it must do so at the level that Bonferroni gives each of K: alpha / K. A
claim of `some` is the mirror image. A claim of `most` goes by more than half.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from cpdrun.report.claims.claim import Ask, Claim
from cpdrun.report.claims.values import Values, key_of
from cpdrun.report.read import formats
from cpdrun.report.read.collect import CASE, SEED, identity
from cpdrun.report.read.compare import Difference, difference
from cpdrun.report.read.learnt import CLASSES_IF_UNKNOWN, learnt
from cpdrun.report.read.metric import Metric
from cpdrun.report.read.words import axis_text, axis_title, is_scaling

HELD, CONTRADICTED, OPEN, NOT_ASKED = "held", "contradicted", "open", "not asked"

# Where the values of a sweep may be, best first; sources that do not have the cells are passed over.
Sources = Callable[[str], Sequence[Values]]


@dataclass(frozen=True)
class Finding:
    """What one comparison of cells showed. `value`, `half_width` and `deviation` are in shown units."""

    ask: Ask
    cell: str
    verdict: str
    source: str
    seeds: int = 0
    value: float = math.nan
    half_width: float = math.nan  # NaN where seeds are too few, or the value is counted
    deviation: float = math.nan  # of the differences, seed by seed
    test_samples: float = math.nan  # that the metric is a share of
    why: str = ""  # where it is not the interval that decides

    @property
    def figure(self) -> str:
        """`+0.6 ± 3.0 points`, `4.0 times fewer`, `0.03 % more`."""
        if not math.isfinite(self.value):
            return "-"
        if self.ask.count:
            much = f"{self.value:.3g}"
            return f"{much} times fewer" if self.ask.counted_as == "times_fewer" else f"{much} % more"
        metric = Metric(self.ask.metric)
        shown = metric.show_difference(self.value / metric.scale, self.half_width / metric.scale)
        return shown + (" points" if metric.is_fraction else "")


@dataclass(frozen=True)
class Judgement:
    claim: Claim
    verdict: str
    findings: list[Finding]


def judge(claim: Claim, sources: Sources, ci: float = 95) -> Judgement:
    """What the runs say about `claim`; `ci` is the intervals' width in per cent."""
    if claim.not_asked:
        return Judgement(claim, NOT_ASKED, [])
    compared = [pair for ask in claim.asks for pair in _comparisons(ask, sources)]
    strict = 100 - (100 - ci) / max(1, len(compared))
    usual = [_finding(pair, ci, ci) for pair in compared]
    once = [
        _finding(pair, strict, ci) for pair in compared
    ]  # for a verdict that one comparison can bring about
    return Judgement(claim, _verdict(claim, usual, once), usual)


def _verdict(claim: Claim, usual: list[Finding], once: list[Finding]) -> str:
    count = {v: sum(f.verdict == v for f in usual) for v in (HELD, CONTRADICTED)}
    alone = {v: any(f.verdict == v for f in once) for v in (HELD, CONTRADICTED)}
    everything = len(usual) if usual else math.inf
    if claim.holds_for == "every":
        return CONTRADICTED if alone[CONTRADICTED] else HELD if count[HELD] == everything else OPEN
    if claim.holds_for == "some":
        return HELD if alone[HELD] else CONTRADICTED if count[CONTRADICTED] == everything else OPEN
    return next((v for v in (HELD, CONTRADICTED) if 2 * count[v] > everything), OPEN)


@dataclass(frozen=True)
class _Pair:
    ask: Ask
    cell: str
    source: str
    ours: pd.DataFrame
    against: pd.DataFrame


def _comparisons(ask: Ask, sources: Sources) -> list[_Pair]:
    """Of the first source that has both sides; one without rows where none has."""
    for values in sources(ask.sweep):
        if ask.metric and f"metric:{ask.metric}" not in values.rows:
            continue
        if ask.count and ask.count not in values.rows:
            continue
        if pairs := list(_pairs(ask, values)):
            return sorted(pairs, key=_for_reading)
    nothing = pd.DataFrame()
    return [_Pair(ask, _in_words(ask.ours), f"{ask.sweep}, no runs", nothing, nothing)]


def _for_reading(pair: _Pair) -> tuple:
    """Most bits first, as in tables."""
    return (-formats.order(pair.ours.iloc[0]["format"])[0], pair.cell)


def _pairs(ask: Ask, values: Values) -> Iterator[_Pair]:
    """Every cell of ours beside the one that equals it in all axes that the ask does not name."""
    ours, against = (_chosen(values.rows, {**ask.where, **cells}) for cells in (ask.ours, ask.against))
    shared = _shared_axes(ask, values, ours, against)
    varying = [axis for axis in values.axes if len({identity(value) for value in ours.get(axis, [])}) > 1]
    shown = [axis for axis in values.axes if axis in ask.ours or (axis in varying and CASE not in ask.ours)]
    shown += [axis for axis in shared if axis in varying and axis not in shown]
    partners = _by_cell(against, shared)
    for cell in _by_cell(ours, values.axes).values():
        first = cell.iloc[0].to_dict()
        partner = partners.get(key_of(first, shared))
        if partner is not None:
            words = _in_words({axis: first[axis] for axis in shown})
            yield _Pair(ask, words, values.source, cell, partner)


def _shared_axes(ask: Ask, values: Values, ours: pd.DataFrame, against: pd.DataFrame) -> list[str]:
    """The axes in which both sides must be equal: those not named, and not settled by those named (a case settles its
    format). How gradients are scaled says nothing about a side that does not scale them."""
    named = [axis for axis in values.axes if axis in {*ask.ours, *ask.against}]
    both = [*ours.to_dict("records"), *against.to_dict("records")]

    def is_settled(axis: str) -> bool:
        pairs = {(key_of(row, named), identity(row.get(axis))) for row in both}
        return len(pairs) == len({cell for cell, _ in pairs})

    rest = [axis for axis in values.axes if axis not in named and not is_scaling(axis)]
    return [axis for axis in rest if CASE not in named or not is_settled(axis)]


def _chosen(rows: pd.DataFrame, cells: dict[str, Any]) -> pd.DataFrame:
    for axis, wanted in cells.items():
        if axis not in rows:
            return rows.iloc[:0]
        allowed = wanted if isinstance(wanted, list) else [wanted]
        rows = rows[[any(_is(value, one) for one in allowed) for value in rows[axis]]]
    return rows


def _is(value: Any, wanted: Any) -> bool:
    """A class is known by its name, `Skewed`, as tables show it."""
    return identity(value) == identity(wanted) or (isinstance(wanted, str) and axis_text(value) == wanted)


def _by_cell(rows: pd.DataFrame, axes: Sequence[str]) -> dict[tuple[str, ...], pd.DataFrame]:
    keys = [key_of(row, axes) for row in rows.to_dict("records")]
    return {key: rows[[other == key for other in keys]] for key in dict.fromkeys(keys)}


def _in_words(cells: dict[str, Any]) -> str:
    words = []
    for axis, value in cells.items():
        if axis in ("format", CASE):
            words.append(", ".join(map(str, value)) if isinstance(value, list) else str(value))
        elif axis == "aps":
            words.append("with APS" if value else "without APS")
        else:
            words.append(f"{axis_title(axis)} {axis_text(value)}")
    return ", ".join(words)


def _finding(pair: _Pair, ci: float, shown_ci: float) -> Finding:
    """The comparison judged by an interval of `ci` per cent, and shown with one of `shown_ci`."""
    ask, facts = pair.ask, {"ask": pair.ask, "cell": pair.cell, "source": pair.source}
    if pair.ours.empty:
        return Finding(**facts, verdict=OPEN, why="no runs")
    if ask.count:
        return _counted(pair, facts)
    column, metric = f"metric:{ask.metric}", Metric(ask.metric)
    ours, against = (_by_seed(rows, column) for rows in (pair.ours, pair.against))
    if ours is None or against is None:
        return Finding(**facts, verdict=OPEN, why="several runs of one seed")
    lost = _diverged(pair.ours) - _diverged(pair.against)
    if problem := _baseline_problem(pair.against, metric, against):
        return Finding(**facts, verdict=OPEN, why=problem)
    seeds = [seed for seed in ours if seed in against]
    samples = _samples(metric, pair.ours, pair.against)
    facts |= {"seeds": len(seeds), "test_samples": samples}
    if seeds:
        sides = [{seed: side[seed] for seed in seeds} for side in (ours, against)]
        shown, gap = (_gap(metric, *sides, level, samples) for level in (shown_ci, ci))
        facts |= {
            "value": shown.mean * metric.scale,
            "half_width": shown.half_width * metric.scale,
            "deviation": shown.deviation * metric.scale,
        }
    if lost and ask.at_least is not None:
        return Finding(**facts, verdict=CONTRADICTED, why=f"{len(lost)} of {len(pair.ours)} runs diverged")
    if len(seeds) < 2:
        return Finding(**facts, verdict=OPEN, why="one seed" if seeds else "no seed in common")
    if not math.isfinite(gap.half_width):
        return Finding(
            **facts, verdict=OPEN, why="the same for every seed, over an unknown number of samples"
        )
    half = gap.half_width * metric.scale
    return Finding(**facts, verdict=_against_bounds(ask, facts["value"] - half, facts["value"] + half))


def _gap(
    metric: Metric, ours: dict[Any, float], against: dict[Any, float], ci: float, samples: float
) -> Difference:
    better = metric.higher_is_better
    return difference(ours, against, ci=ci, higher_is_better=better, samples=samples)


def _counted(pair: _Pair, facts: dict[str, Any]) -> Finding:
    ours, against = (rows[pair.ask.count].dropna() for rows in (pair.ours, pair.against))
    if ours.empty or against.empty or not (fmean(ours) > 0 and fmean(against) > 0):
        return Finding(**facts, verdict=OPEN, why=f"the record has no {pair.ask.count}")
    ratio = fmean(against) / fmean(ours)
    value = ratio if pair.ask.counted_as == "times_fewer" else 100 * (1 / ratio - 1)
    verdict = _against_bounds(pair.ask, value, value)
    return Finding(**facts, verdict=verdict, seeds=len(ours), value=value, why="counted")


def _against_bounds(ask: Ask, low: float, high: float) -> str:
    """Where the interval low..high lies: within the threshold, outside it, or across."""
    at_least = -math.inf if ask.at_least is None else ask.at_least
    at_most = math.inf if ask.at_most is None else ask.at_most
    if at_least <= low and high <= at_most:
        return HELD
    return CONTRADICTED if high < at_least or low > at_most else OPEN


def _by_seed(rows: pd.DataFrame, column: str) -> dict[Any, float] | None:
    """The metric by seed; None where a seed has two different values."""
    found: dict[Any, float] = {}
    for seed, value in zip(rows[SEED], rows[column], strict=True):
        if math.isfinite(value) and found.setdefault(seed, float(value)) != value:
            return None
    return found


def _diverged(rows: pd.DataFrame) -> set[Any]:
    return set(rows.loc[[bool(flag) for flag in rows["diverged"]], SEED])


def _baseline_problem(rows: pd.DataFrame, metric: Metric, by_seed: dict[Any, float]) -> str:
    """Why nothing can be measured against these rows, if they are fp32's; the rules of the report's own answer."""
    first = rows.iloc[0]
    case = first.get(CASE)
    if not formats.is_baseline(str(case) if isinstance(case, str) else first["format"]):
        return ""
    if diverged := _diverged(rows):
        return f"fp32 diverged itself in {len(diverged)} of {len(rows)} runs"
    if not by_seed:
        return ""
    mean, classes = fmean(by_seed.values()), pd.to_numeric(rows["num_classes"]).min()
    has_learnt = learnt(metric, mean, classes)
    if has_learnt is None and metric.is_fraction:
        has_learnt = learnt(metric, mean, CLASSES_IF_UNKNOWN)
    return (
        "" if has_learnt in (None, True) else f"fp32 did not learn itself: {metric.show(mean)}{metric.unit}"
    )


def _samples(metric: Metric, *sides: pd.DataFrame) -> float:
    """The fewest test samples of any of the runs, where the metric is a share of them; NaN where one does not say."""
    counts = [pd.to_numeric(rows["test_samples"]) for rows in sides]
    known = metric.is_fraction and all(column.notna().all() for column in counts)
    return float(min(column.min() for column in counts)) if known else math.nan
