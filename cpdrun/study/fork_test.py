"""Compute the gap of the training loss over the steps, for runs that start from one checkpoint (a fork test).

A fork is a run that continues from the checkpoint. A pair consists of a candidate's fork and the baseline's fork of the
same seed, and so with the same batches. The steps are divided into PARTS parts. The gap of a pair in a part is the mean
difference of the losses there, and its growth is the slope of a line through the differences of all steps, times the
length of the run. Both get the mean and the interval over the pairs, as in all results.

The control shows how much two forks of the baseline with different seeds differ. In cpdrun's own training loop, two
forks with the same seed and the same recipe are equal bit for bit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from cpdrun.record import RunDir
from cpdrun.stats.evidence import judge, ordered_seeds
from cpdrun.stats.means import deviation
from cpdrun.study.metric import Metric
from cpdrun.study.records import checkpoint_of
from cpdrun.study.study import Study

PARTS = 4
TRAIN_LOSSES = ("train_loss", "train/loss", "loss")  # The first of these that a script logs is compared.

# The loss of one run, keyed by step. NaN if it was not finite.
Curve = dict[float, float]


class Trend(StrEnum):
    """The direction in which a gap changes over the steps. UNKNOWN: the interval of the growth contains 0."""

    WORSENS = "worsens"
    IMPROVES = "improves"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class MeanGap:
    """A mean over pairs with its confidence interval, in the unit of the metric. Positive is better than the baseline.

    Attributes:
        mean: The mean.
        low: The lower end of the interval. It is -inf if there are too few pairs to compute it.
        high: The upper end of the interval, or inf.
    """

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class CandidateGaps:
    """The gaps of one candidate: how much better it is than the baseline. Runs with the same seed form a pair.

    Attributes:
        candidate: The label of the candidate.
        pairs: The number of pairs.
        left_out: The number of pairs that are excluded because a loss was not finite.
        parts: The mean gap in each quarter of the steps.
        growth: The change of the gap from the first step to the last one, averaged over the pairs.
        trend: The direction of the growth.
    """

    candidate: str
    pairs: int
    left_out: int
    parts: list[MeanGap]
    growth: MeanGap
    trend: Trend


@dataclass(frozen=True)
class Control:
    """The differences between two forks of the baseline with different seeds, in the metric's stored unit.

    Attributes:
        seeds: The number of seeds.
        parts: The root mean square difference in each quarter of the steps.
        growth: The root mean square difference of the growth over all steps.
    """

    seeds: int
    parts: list[float]
    growth: float


@dataclass(frozen=True)
class ForkTest:
    """The gaps of all candidates that started from the checkpoint of one baseline.

    Attributes:
        checkpoint: The path of the checkpoint.
        setting: A label with the values that candidates and baseline share, or "" if this is the only fork test.
        baseline: The label of the baseline.
        metric: The name of the metric, usually a training loss.
        steps: The first and the last step of each part.
        candidates: The candidates with at least one pair.
        control: The differences between forks of the baseline; None with fewer than two seeds.
    """

    checkpoint: str
    setting: str
    baseline: str
    metric: str
    steps: list[tuple[float, float]]
    candidates: list[CandidateGaps]
    control: Control | None


def fork_test(
    setting: str,
    baseline: tuple[str, Mapping[Any, RunDir]],
    candidates: Mapping[str, Mapping[Any, RunDir]],
    metric: Metric,
    confidence: float,
) -> ForkTest | None:
    """Compare the losses of forks step by step.

    Args:
        setting: As in `ForkTest`.
        baseline: The label of the baseline, and its runs by seed.
        candidates: The runs of each candidate by seed, keyed by label.
        metric: The metric that decides. It is compared if the runs have no training loss of at least PARTS steps.
        confidence: The confidence of each interval as a share.

    Returns:
        The gaps. None if the baseline does not start from a checkpoint, or if no pair has losses of enough steps.
    """
    label, runs = baseline
    checkpoint = next(map(checkpoint_of, runs.values()), None)
    if checkpoint is None:
        return None
    curves = {seed: _curves(run, metric.name) for seed, run in runs.items()}
    names = [name for name in (*TRAIN_LOSSES, metric.name) if any(name in of for of in curves.values())]
    if not names:
        return None
    name = names[0]
    theirs = {seed: of[name] for seed, of in curves.items() if name in of}
    sign = 1 if name == metric.name and metric.higher_is_better else -1
    gaps, left_out = {}, {}
    for candidate, of_candidate in candidates.items():
        ours = {seed: _curves(run, metric.name).get(name, {}) for seed, run in of_candidate.items()}
        pairs = [_difference(ours[seed], theirs[seed]) for seed in ordered_seeds(ours.keys() & theirs.keys())]
        gaps[candidate] = [pair for pair in pairs if pair and np.isfinite(list(pair.values())).all()]
        left_out[candidate] = len([pair for pair in pairs if pair]) - len(gaps[candidate])
    healthy = [curve for curve in theirs.values() if np.isfinite(list(curve.values())).all()]
    steps = _common_steps([*healthy, *(pair for pairs in gaps.values() for pair in pairs)])
    if len(steps) < PARTS or not any(gaps.values()):
        return None
    found = [
        _candidate(
            candidate, [sign * _at(pair, steps) for pair in pairs], left_out[candidate], steps, confidence
        )
        for candidate, pairs in gaps.items()
        if pairs
    ]
    ends = [(float(part[0]), float(part[-1])) for part in np.array_split(np.array(steps), PARTS)]
    control = _control([_at(curve, steps) for curve in healthy], steps) if len(healthy) > 1 else None
    return ForkTest(checkpoint, setting, label, name, ends, found, control)


def fork_tests(study: Study) -> list[ForkTest]:
    """Return the fork tests of a study: one for each facet whose runs start from a checkpoint."""
    found = []
    for facet in study.facets:
        if (baseline := facet.baseline) is not None:
            candidates = {g.full_name: g.run_by_seed for g in facet.groups if g is not baseline}
            theirs = study.baseline_name, baseline.run_by_seed
            found.append(fork_test(facet.label, theirs, candidates, study.metric, study.ci / 100))
    return [each for each in found if each is not None]


def _curves(run: RunDir, metric: str) -> dict[str, Curve]:
    """Return the curves of a run's training loss and metric that have at least PARTS steps, by name.

    Without steps in the record of a script, epochs or else the numbers of rows take their place.
    """
    curves: dict[str, Curve] = {}
    try:
        for row in run.rows():
            for i, loss in enumerate(row.step_losses or (), row.step - len(row.step_losses or ()) + 1):
                curves.setdefault(TRAIN_LOSSES[0], {})[i] = math.nan if loss is None else loss
        if not curves:
            for n, logged in enumerate(run.logged(), 1):
                place = next((at for at in (logged.step, logged.epoch) if at is not None), n)
                for name in {*TRAIN_LOSSES, metric} & logged.metrics.keys():
                    value = logged.metrics[name]
                    curves.setdefault(name, {})[place] = math.nan if value is None else value
    except (OSError, RecursionError):  # The file may be missing or unreadable, or may be a folder.
        return {}
    return {name: curve for name, curve in curves.items() if len(curve) >= PARTS}


def _difference(ours: Curve, theirs: Curve) -> Curve:
    return {step: ours[step] - theirs[step] for step in ours.keys() & theirs.keys()}


def _common_steps(curves: Sequence[Curve]) -> list[float]:
    return sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []


def _at(curve: Curve, steps: Sequence[float]) -> np.ndarray:
    return np.array([curve[step] for step in steps])


def _candidate(
    label: str, gaps_PxS: list[np.ndarray], left_out: int, steps: Sequence[float], confidence: float
) -> CandidateGaps:
    parts = [_mean_gap(gaps, confidence) for gaps in zip(*map(_part_means, gaps_PxS), strict=True)]
    growth = _mean_gap([_growth(gap_S, steps) for gap_S in gaps_PxS], confidence)
    trend = Trend.WORSENS if growth.high < 0 else Trend.IMPROVES if growth.low > 0 else Trend.UNKNOWN
    return CandidateGaps(label, len(gaps_PxS), left_out, parts, growth, trend)


def _control(losses_PxS: list[np.ndarray], steps: Sequence[float]) -> Control:
    """Two independent values with standard deviation s differ by sqrt(2) s (root mean square)."""
    parts = [math.sqrt(2) * deviation(means) for means in zip(*map(_part_means, losses_PxS), strict=True)]
    growth = math.sqrt(2) * deviation([_growth(loss_S, steps) for loss_S in losses_PxS])
    return Control(len(losses_PxS), parts, growth)


def _part_means(values_S: np.ndarray) -> list[float]:
    return [float(part.mean()) for part in np.array_split(values_S, PARTS)]


def _growth(values_S: np.ndarray, steps: Sequence[float]) -> float:
    """Return the change from the first to the last step along the line of least squares."""
    slope = np.polynomial.Polynomial.fit(steps, values_S, 1, domain=[steps[0], steps[-1]], window=[0, 1])
    return float(slope.coef[1])


def _mean_gap(gaps: Sequence[float], confidence: float) -> MeanGap:
    error = (1 - confidence) / 2
    found = judge(gaps, 0.0, certify=error, refute=error, confidence=confidence)
    return MeanGap(found.mean, found.low, found.high)
