"""From a claim and the values of single runs to a verdict: certified, refuted, open, or not asked.

A comparison is judged by the anytime-valid test of searches and reports (cpdrun.stats.evidence) on differences of the
same seed, in the order of the seeds, with the claim's bound as the boundary of the test: certified where it is shown
to be kept, refuted where it is shown not to be. So runs may be added until it is settled. Failed runs count as
`cpdrun.stats.failures` says, and what had one is never certified; a seed that diverged on both sides, or lacks one, is
left out. A baseline in fp32 that diverged or did not learn is nothing to compare with. Bytes are counted: what is
counted is certain.

Comparisons that ask the same of candidates whose runs are equal bit for bit count once. How the comparisons of a claim
share the error, and how two bounds do, is explained in cpdrun.stats.quantified. Comparisons that nobody has run count
as well: whether they were is no reason to be surer of the others.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import pandas as pd

from cpdrun.report.claims.claim import Ask, Claim
from cpdrun.report.claims.pairs import Pair, Sources, comparisons
from cpdrun.stats import evidence, quantified
from cpdrun.stats.evidence import Verdict
from cpdrun.stats.failures import Failure, Runs, compare_runs, no_failure
from cpdrun.stats.intervals import is_zero
from cpdrun.study.axes import formats
from cpdrun.study.collect import CASE, SEED
from cpdrun.study.margin import DEFAULT_POINTS
from cpdrun.study.metric import Metric
from cpdrun.study.runs.learnt import CLASSES_IF_UNKNOWN, learnt, worst

NOT_ASKED = "not asked"
MOST_SEEDS = 1000  # beyond it a sentence says that it takes more


@dataclass(frozen=True)
class Finding:
    """What one comparison of cells showed. `value`, `low`, `high` and `deviation` are in shown units."""

    ask: Ask
    cell: str
    verdict: Verdict
    source: str
    seeds: int = 0  # pairs; of a count, runs
    value: float = math.nan
    low: float = -math.inf  # of the anytime interval, at the level of the verdict that this end decides
    high: float = math.inf
    deviation: float = math.nan  # of the differences, seed by seed; NaN where none was measured
    more: int | None = None  # about how many more seeds would settle it; None: more than MOST_SEEDS in all
    errors: tuple[float, float] = (math.nan, math.nan)  # that certifying, and refuting, may make
    test_samples: float = math.nan  # that the metric is a share of
    why: str = ""  # where it is not the test that decides
    is_repeat: bool = False  # of another comparison, whose runs are equal bit for bit: it counts once

    @property
    def figure(self) -> str:
        """`+0.60 [−1.20, +2.90] points`, `4.0 times fewer`, `0.03 % more`."""
        if not math.isfinite(self.value):
            return "-"
        if self.ask.count:
            much = f"{self.value:.3g}"
            return f"{much} times fewer" if self.ask.counted_as == "times_fewer" else f"{much} % more"
        metric = Metric(self.ask.metric)
        shown = metric.show_between(*(each / metric.scale for each in (self.value, self.low, self.high)))
        return shown + metric.points


@dataclass(frozen=True)
class Judgement:
    claim: Claim
    verdict: str  # a Verdict, or NOT_ASKED
    findings: list[Finding]

    def facts(self) -> dict[str, Any]:
        """For programs; figures in shown units."""
        return {
            "claim": self.claim.name,
            "paper": self.claim.paper.arxiv,
            "says": self.claim.says,
            "verdict": str(self.verdict),
            "findings": [
                {
                    "cell": finding.cell,
                    "verdict": str(finding.verdict),
                    "source": finding.source,
                    "seeds": finding.seeds,
                    "value": finding.value,
                    "low": finding.low,
                    "high": finding.high,
                    "more": finding.more,
                    "why": finding.why,
                    "is_repeat": finding.is_repeat,
                }
                for finding in self.findings
            ],
        }


def judge(claim: Claim, sources: Sources, ci: float = 95) -> Judgement:
    """What the runs say about `claim`, at a confidence of `ci` per cent for the claim as a whole."""
    if claim.not_asked:
        return Judgement(claim, NOT_ASKED, [])
    compared = [pair for ask in claim.asks for pair in comparisons(ask, sources)]
    first = _first_of_equal(compared)
    errors = quantified.shares(1 - ci / 100, claim.holds_for, len({*first}))
    findings = [_finding(pair, errors, ci) for pair in compared]
    findings = [
        found
        if i == of
        else replace(found, is_repeat=True, why=f"the same runs, bit for bit, as {compared[of].cell}")
        for i, (found, of) in enumerate(zip(findings, first, strict=True))
    ]
    verdicts = [finding.verdict for finding in findings if not finding.is_repeat]
    return Judgement(claim, quantified.verdict(claim.holds_for, verdicts), findings)


def _first_of_equal(pairs: list[Pair]) -> list[int]:
    """Return for each comparison the index of the first one that asks the same of equal runs.

    Candidates whose runs end with equal weights for every seed are one: that they agree is no evidence.
    """
    found: dict[Any, int] = {}
    return [found.setdefault(_made_of(pair) or i, i) for i, pair in enumerate(pairs)]


def _made_of(pair: Pair) -> tuple | None:
    """Return what tells a candidate from others; None for one without runs, and for what is counted."""
    if pair.ours.empty or pair.ask.count:
        return None
    return repr(pair.ask), tuple(sorted(_made(row) for row in pair.ours.to_dict("records")))


def _made(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the seed of a run and its weights, or all of its metrics if the record lacks these."""
    metrics = [f"{name}={row[name]!r}" for name in sorted(row) if name.startswith("metric:")]
    weights = row["weights_sha256"]
    return str(row[SEED]), *([weights] if isinstance(weights, str) else [str(row["failure"]), *metrics])


def _finding(pair: Pair, errors: tuple[float, float], ci: float) -> Finding:
    ask, facts = pair.ask, {"ask": pair.ask, "cell": pair.cell, "source": pair.source, "errors": errors}
    if pair.ours.empty:
        return Finding(**facts, verdict=Verdict.OPEN, why="no runs")
    if ask.count:
        return _counted(pair, facts)
    metric = Metric(ask.metric)
    ours, against = (_runs(rows, f"metric:{ask.metric}") for rows in (pair.ours, pair.against))
    if ours is None or against is None:
        return Finding(**facts, verdict=Verdict.OPEN, why="several runs of one seed")
    if problem := _baseline_problem(pair.against, metric, dict(against.values)):
        return Finding(**facts, verdict=Verdict.OPEN, why=problem)
    samples = _samples(metric, pair.ours, pair.against)
    low = worst(metric, _classes(pair.against), list(against.values.values()), _tolerance(ask, metric))
    compared = compare_runs(ours, against)
    gaps = evidence.differences(
        compared.ours, compared.baseline, higher_is_better=metric.higher_is_better, worst=low
    )
    tested = _tested(ask, metric, gaps, errors, 1 / samples if samples > 0 else 0.0, ci)
    why = _why_open(gaps, tested["deviation"], samples, metric) if tested["verdict"] is Verdict.OPEN else ""
    if compared.is_barred:
        counts = compared.counts
        diverged = f"{counts.diverged} of {len(pair.ours)} runs diverged"
        why = counts.describe() if counts.without_result else diverged
        if tested["verdict"] is Verdict.CERTIFIED:
            tested["verdict"] = Verdict.OPEN
    elif tested["verdict"] is Verdict.CERTIFIED:
        why = no_failure(len(gaps), ci)
    why = ", ".join(filter(None, (why, compared.counts.describe_pairs())))
    return Finding(**facts, seeds=len(gaps), test_samples=samples, why=why, **tested)


def _tested(
    ask: Ask, metric: Metric, gaps: list[float], errors: tuple[float, float], resolution: float, ci: float
) -> dict[str, Any]:
    """The verdict on the differences, their mean, interval and deviation in shown units, and how many more it takes."""
    certify, refute = errors
    refute /= sum(bound is not None for bound in (ask.at_least, ask.at_most))
    options = {"certify": certify, "refute": refute, "resolution": resolution, "most_pairs": MOST_SEEDS}
    options["confidence"] = ci / 100
    sides = []
    if ask.at_least is not None:
        sides.append((1, evidence.judge(gaps, -ask.at_least / metric.scale, **options)))
    if ask.at_most is not None:
        sides.append((-1, evidence.judge([-gap for gap in gaps], ask.at_most / metric.scale, **options)))
    verdict = quantified.verdict("every", [found.verdict for _, found in sides])
    lows, highs = zip(*(sorted((sign * found.low, sign * found.high)) for sign, found in sides), strict=True)
    # of two bounds the ends that certify, or else the outer ones: no verdict looks surer than its interval
    ends = (max(lows), min(highs)) if verdict is Verdict.CERTIFIED else (min(lows), max(highs))
    further = [found.more and found.more.likely for _, found in sides]
    return {
        "verdict": verdict,
        "value": sides[0][0] * sides[0][1].mean * metric.scale,
        "low": ends[0] * metric.scale,
        "high": ends[1] * metric.scale,
        "deviation": sides[0][1].deviation * metric.scale,
        "more": None if None in further else max(further),
    }


def _why_open(gaps: list[float], deviation: float, samples: float, metric: Metric) -> str:
    """Where it is not that more seeds are needed."""
    if len(gaps) < 2:
        return "one seed" if gaps else "no seed in common"
    if deviation > 0 and not is_zero(deviation):
        return ""
    unknown = metric.counts_samples and not samples > 0
    return "the same for every seed" + (", over an unknown number of samples" if unknown else "")


def _counted(pair: Pair, facts: dict[str, Any]) -> Finding:
    ours, against = (rows[pair.ask.count].dropna() for rows in (pair.ours, pair.against))
    if ours.empty or against.empty or not (fmean(ours) > 0 and fmean(against) > 0):
        return Finding(**facts, verdict=Verdict.OPEN, why=f"the record has no {pair.ask.count}")
    ratio = fmean(against) / fmean(ours)
    value = ratio if pair.ask.counted_as == "times_fewer" else 100 * (1 / ratio - 1)
    at_least = -math.inf if pair.ask.at_least is None else pair.ask.at_least
    at_most = math.inf if pair.ask.at_most is None else pair.ask.at_most
    verdict = Verdict.CERTIFIED if at_least <= value <= at_most else Verdict.REFUTED
    return Finding(**facts, verdict=verdict, seeds=len(ours), value=value, why="counted")


def _runs(rows: pd.DataFrame, column: str) -> Runs | None:
    """Return the runs of a cell for a comparison; None if a seed has two different values."""
    values = _by_seed(rows, column)
    if values is None:
        return None
    failed, known = rows[rows["failure"].notna()], rows[rows["length"].notna()]
    failures = {
        s: Failure(why) for s, why in zip(failed[SEED], failed["failure"], strict=True) if s not in values
    }
    lengths = {seed: int(length) for seed, length in zip(known[SEED], known["length"], strict=True)}
    return Runs(values, failures, lengths)


def _by_seed(rows: pd.DataFrame, column: str) -> dict[Any, float] | None:
    """The metric by seed, NaN for a run that diverged, whatever it measured; None where a seed has two different
    values."""
    found: dict[Any, float] = {}
    for seed, value, diverged in zip(rows[SEED], rows[column], rows["diverged"], strict=True):
        if not (diverged or math.isfinite(value)):
            continue
        value = math.nan if diverged else float(value)
        known = found.setdefault(seed, value)
        if known != value and not (math.isnan(known) and math.isnan(value)):
            return None
    return found


def _baseline_problem(rows: pd.DataFrame, metric: Metric, by_seed: dict[Any, float]) -> str:
    """Why nothing can be measured against these rows, if they are fp32's; the rules of the report's own answer."""
    first = rows.iloc[0]
    case = first.get(CASE)
    if not formats.is_baseline(str(case) if isinstance(case, str) else first["format"]):
        return ""
    if diverged := sum(map(math.isnan, by_seed.values())):
        return f"fp32 diverged itself in {diverged} of {len(rows)} runs"
    if not by_seed:
        return ""
    mean, classes = fmean(by_seed.values()), _classes(rows)
    has_learnt = learnt(metric, mean, classes)
    if has_learnt is None and metric.is_fraction:
        has_learnt = learnt(metric, mean, CLASSES_IF_UNKNOWN)
    return (
        "" if has_learnt in (None, True) else f"fp32 did not learn itself: {metric.show(mean)}{metric.unit}"
    )


def _classes(rows: pd.DataFrame) -> float:
    return float(pd.to_numeric(rows["num_classes"]).min())


def _tolerance(ask: Ask, metric: Metric) -> float:
    """Return, in the metric's own unit, the farther bound, or half a point (0.05 of a loss) if that is more.

    It is more if the bound is no difference at all.
    """
    bounds = [abs(bound) for bound in (ask.at_least, ask.at_most) if bound is not None]
    return max(*bounds, DEFAULT_POINTS if metric.is_fraction else 0.05) / metric.scale


def _samples(metric: Metric, *sides: pd.DataFrame) -> float:
    """The fewest test samples of any of the runs, where the metric is a share of them; NaN where one does not say."""
    counts = [pd.to_numeric(rows[rows["failure"].isna()]["test_samples"]) for rows in sides]
    known = metric.counts_samples and all(column.notna().all() for column in counts)
    return float(min(column.min() for column in counts)) if known else math.nan
