"""Judge claims: certified, refuted, open, counted or not run.

Each comparison of a metric is judged by the same evidence as in searches and reports (`cpdrun.stats.evidence`), with
the bound of the claim as the boundary. Therefore, runs may be added until a claim is settled. `cpdrun.stats.failures`
explains how failed runs count. Comparisons of bytes and of numbers in tables involve no chance: a number inside the
bounds is "counted", and a number outside refutes the claim.

`research.claims.quantified_claims` explains how the comparisons of a claim, and the two bounds of a comparison, share
the error probability. Candidates whose runs have the same weights, bit for bit, count as one comparison. Comparisons
that were not run keep their share of the error probability, so that running them later does not change the others. The
verdict only includes comparisons that were run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pandas as pd
from research.claims import quantified_claims
from research.claims.cells import Pair, find_pairs, matches
from research.claims.claim import TIMES_FEWER, Claim, Comparison
from research.claims.values import Values

from cpdrun.report.failures_text import failure_bound_text, failures_text, left_out_text
from cpdrun.report.study_text import baseline_problem_text
from cpdrun.stats import evidence
from cpdrun.stats.evidence import PairsRange, Verdict
from cpdrun.stats.failures import are_identical, compare_runs
from cpdrun.stats.means import deviation, is_zero
from cpdrun.study.group import Facet, Group
from cpdrun.study.margin import DEFAULT_POINTS
from cpdrun.study.metric import Metric, worst
from cpdrun.study.study import Study

MOST_PAIRS = 1000


class ClaimVerdict(StrEnum):
    CERTIFIED = "certified"
    COUNTED = "counted"
    REFUTED = "refuted"
    OPEN = "open"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Finding:
    """The result of one comparison. Differences are in displayed units, and positive is better."""

    comparison: Comparison
    cell: tuple[str, ...]
    verdict: ClaimVerdict
    source: str = ""
    pairs: int = 0
    value: float = math.nan  # the mean difference, or the count
    low: float = -math.inf
    high: float = math.inf
    more: PairsRange | None = (
        None  # the expected number of further pairs that settle the comparison. None if unknown.
    )
    note: str = ""
    if_equal: float = (
        math.nan
    )  # the pairs that would certify an equal candidate, or infinity if more than MOST_PAIRS
    repeats: tuple[str, ...] | None = (
        None  # a cell with identical runs. If there is one, this finding does not count.
    )

    @property
    def was_run(self) -> bool:
        return self.verdict is not ClaimVerdict.NOT_RUN


@dataclass(frozen=True)
class Judgment:
    claim: Claim
    verdict: ClaimVerdict
    findings: Sequence[Finding] = ()

    @property
    def distinct(self) -> list[Finding]:
        """The findings that count."""
        return [finding for finding in self.findings if finding.repeats is None]

    @property
    def is_tested(self) -> bool:
        """Whether the verdict is based on statistics, so that it may be wrong by chance."""
        return any(finding.was_run and finding.comparison.metric is not None for finding in self.findings)


def judge(
    claim: Claim,
    stored: Callable[[str], Values | None],
    confidence: float = 0.95,
    tables: Callable[[str], pd.DataFrame | None] = lambda name: None,
) -> Judgment:
    """Return the verdict on a claim.

    Args:
        claim: The claim.
        stored: A function that returns the stored values of a sweep with a given name, or None if there are none.
        confidence: The confidence of the verdict on the whole claim, and of each printed interval.
        tables: A function that returns the committed table with a given name, or None if there is none.
    """
    of_tables = [
        found
        for comparison in claim.comparisons
        if comparison.table is not None
        for found in _table_findings(comparison, tables(comparison.table))
    ]
    pairs = [
        pair
        for comparison in claim.comparisons
        if comparison.table is None
        for pair in find_pairs(comparison, stored(comparison.sweep))
    ]
    if not pairs and not of_tables:
        return Judgment(claim, ClaimVerdict.NOT_RUN)
    first = [
        next(j for j in range(i + 1) if j == i or _is_same(pairs[j], pair)) for i, pair in enumerate(pairs)
    ]
    errors = quantified_claims.shares(1 - confidence, claim.holds_for, len(set(first)) + len(of_tables))
    findings = [_finding(pair, errors, confidence) for pair in pairs]
    findings = [
        found if j == i else replace(found, repeats=pairs[j].cell)
        for i, (found, j) in enumerate(zip(findings, first, strict=True))
    ]
    findings += of_tables
    return Judgment(claim, _combine(claim, findings), findings)


def _table_findings(comparison: Comparison, table: pd.DataFrame | None) -> list[Finding]:
    """Compare the numbers of a column with the bounds, one for each row with the values of `comparison.where`."""
    rows = [] if table is None else table.to_dict("records")
    rows = [row for row in rows if matches(row, comparison.where)]
    if not rows:
        return [Finding(comparison, _row_text(comparison.where), ClaimVerdict.NOT_RUN)]
    numbers = {key for key in rows[0] if isinstance(rows[0][key], float)}
    return [
        Finding(
            comparison,
            _row_text({key: value for key, value in row.items() if key not in numbers}),
            _verdict_on_count(comparison, value),
            source=str(comparison.table),
            value=value,
        )
        for row in rows
        for value in [float(row[str(comparison.column)])]
    ]


def _row_text(row: Mapping[str, Any]) -> tuple[str, ...]:
    shown = {key: value for key, value in row.items() if not isinstance(value, bool)}
    return tuple(f"{key} {value}" if isinstance(value, int) else str(value) for key, value in shown.items())


def _verdict_on_count(comparison: Comparison, value: float) -> ClaimVerdict:
    low = -math.inf if comparison.at_least is None else comparison.at_least
    high = math.inf if comparison.at_most is None else comparison.at_most
    return ClaimVerdict.COUNTED if low <= value <= high else ClaimVerdict.REFUTED


def _is_same(one: Pair, other: Pair) -> bool:
    """Return whether two candidates have equal weights for every seed. The second candidate then adds no evidence."""
    if (
        one.comparison is not other.comparison
        or not one.comparison.metric
        or not (one.candidate and other.candidate)
    ):
        return False
    return are_identical(one.candidate.fingerprints, other.candidate.fingerprints)


def _combine(claim: Claim, findings: Sequence[Finding]) -> ClaimVerdict:
    run = [finding.verdict for finding in findings if finding.was_run and finding.repeats is None]
    if not run:
        return ClaimVerdict.NOT_RUN
    counted = ClaimVerdict.COUNTED
    verdicts = [Verdict.CERTIFIED if verdict is counted else Verdict(verdict) for verdict in run]
    verdict = quantified_claims.verdict(claim.holds_for, verdicts)
    is_counted = verdict is Verdict.CERTIFIED and ClaimVerdict.CERTIFIED not in run
    return counted if is_counted else ClaimVerdict(verdict)


def _finding(pair: Pair, errors: tuple[float, float], confidence: float) -> Finding:
    comparison, candidate, baseline = pair.comparison, pair.candidate, pair.baseline
    facts: dict[str, Any] = {"comparison": comparison, "cell": pair.cell, "source": pair.source}
    if candidate is None or baseline is None:
        return Finding(**facts, verdict=ClaimVerdict.NOT_RUN)
    if comparison.count:
        return Finding(**facts, **_count(comparison, candidate, baseline))
    metric = Metric(str(comparison.metric))
    study = Study(
        sweeps=[comparison.sweep],
        runs=pd.DataFrame(),
        metric=metric,
        ci=100 * confidence,
        axes=[],
        bits_axis=baseline.axis,
        groups=[candidate, baseline],
        facet_axes=[],
    )
    if problem := _problem(candidate, baseline, study):
        return Finding(**facts, verdict=ClaimVerdict.OPEN, note=problem)
    compared = compare_runs(candidate.outcomes, baseline.outcomes)
    lowest = worst(metric, baseline.num_classes, baseline.values, _largest_bound(comparison, metric))
    gaps = evidence.differences(
        compared.ours, compared.baseline, higher_is_better=metric.higher_is_better, worst=lowest
    )
    samples = study.samples(candidate, baseline)
    tested = _test(comparison, metric, gaps, errors, 1 / samples if samples > 0 else 0.0, confidence)
    notes = [failures_text(compared.counts), left_out_text(compared.counts)]
    if compared.is_barred and tested["verdict"] is ClaimVerdict.CERTIFIED:
        tested["verdict"] = ClaimVerdict.OPEN
    elif tested["verdict"] is ClaimVerdict.CERTIFIED:
        notes[0] = failure_bound_text(compared.counts, 100 * confidence)
    elif len(gaps) < 2:
        notes.append("one pair" if gaps else "no pair")
    elif is_zero(deviation(gaps)):
        notes.append("all pairs have the same difference, which measures no spread")
    return Finding(**facts, **tested, note=", ".join(filter(None, notes)))


def _problem(candidate: Group, baseline: Group, study: Study) -> str | None:
    """Return the reason why two cells cannot be compared, or None if they can."""
    if candidate.repeated or baseline.repeated:
        return "several runs of one seed with different results"
    problem = study.baseline_problem(Facet({}, [baseline])) if baseline.is_baseline else None
    return None if problem is None else baseline_problem_text(study, problem)


def _largest_bound(comparison: Comparison, metric: Metric) -> float:
    """Return the bound with the largest magnitude, in the metric's own unit.

    The result is at least a usual margin, because bounds may be 0.
    """
    bounds = [abs(bound) for bound in (comparison.at_least, comparison.at_most) if bound is not None]
    return max(*bounds, DEFAULT_POINTS if metric.is_fraction else 0.05) / metric.scale


def _test(
    comparison: Comparison,
    metric: Metric,
    gaps: list[float],
    errors: tuple[float, float],
    resolution: float,
    confidence: float,
) -> dict[str, Any]:
    """Judge differences against one bound or two, and return the fields of the finding in shown units."""
    bounds = [(1, comparison.at_least), (-1, comparison.at_most)]
    sides = [(sign, -sign * bound / metric.scale) for sign, bound in bounds if bound is not None]
    certify, refute = errors[0], errors[1] / len(sides)
    judged = [
        evidence.judge(
            [sign * gap for gap in gaps],
            margin,
            certify=certify,
            refute=refute,
            confidence=confidence,
            resolution=resolution,
            most_pairs=MOST_PAIRS,
        )
        for sign, margin in sides
    ]
    (sign, margin), one = sides[0], judged[0]
    low, high = sorted((sign * one.low * metric.scale, sign * one.high * metric.scale))
    more = [each.more for each in judged if each.more is not None]
    if_equal: float = math.nan
    if len(sides) == 1 and margin > 0 and one.deviation > 0:
        needed = evidence.pairs_needed(
            margin, one.deviation, certify=certify, refute=refute, fewest=2, most=MOST_PAIRS
        )
        if_equal = math.inf if needed is None else needed
    return {
        "verdict": ClaimVerdict(quantified_claims.verdict("every", [each.verdict for each in judged])),
        "pairs": len(gaps),
        "value": sign * one.mean * metric.scale,
        "low": low,
        "high": high,
        "more": max(more) if len(more) == len(judged) else None,
        "if_equal": if_equal,
    }


def _count(comparison: Comparison, candidate: Group, baseline: Group) -> dict[str, Any]:
    ours, theirs = (group.figures[str(comparison.count)] for group in (candidate, baseline))
    if not (ours > 0 and theirs > 0):
        return {"verdict": ClaimVerdict.OPEN, "note": f"the runs do not record {comparison.count}"}
    value = theirs / ours if comparison.counted_as == TIMES_FEWER else 100 * (ours / theirs - 1)
    return {"verdict": _verdict_on_count(comparison, value), "value": value, "note": "counted"}
