"""How failed runs count in a comparison, and what n runs without a failure say about the next one.

This is the only place that decides it; searches, reports, claims and imported results all call `compare_runs`:

- A candidate's run that diverges, ends with an error of its own, or stops before a full run would, while the baseline's
  run of the same seed ended well, counts as the worst value of the metric. It also bars the candidate from being
  certified: leaving such seeds out would keep only the survivors.
- A candidate's run that ended for an unknown reason, such as a signal, has no value. It bars the candidate as well,
  because the run may have failed by itself.
- A baseline's run that failed leaves its pair out.
- A run that was stopped on request, or has not ended yet, is not a failure.
- A candidate of which several runs failed and none ended well has no pairs: the cause need not be the format.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

GIVE_UP_AFTER = 2  # failed runs of a cell, if none ended well


class Failure(StrEnum):
    """Why a run has no value that counts."""

    ERROR = "error"  # it ended with an error of its own
    UNKNOWN = "unknown"  # the cause is not known: a signal, a hang, no exit.json


@dataclass(frozen=True)
class Runs:
    """The runs of one cell that have ended, by seed.

    `lengths` holds the epochs, steps or rows of the runs whose program decides by itself when to stop; it is empty for
    runs whose record says that they are complete.
    """

    values: Mapping[Any, float] = field(default_factory=dict)  # NaN for a run that diverged
    failures: Mapping[Any, Failure] = field(default_factory=dict)
    lengths: Mapping[Any, int] = field(default_factory=dict)
    gave_up: Collection[Any] = ()  # seeds of runs that ended early because they did not learn

    @property
    def is_given_up(self) -> bool:
        """Whether runs failed, and none ended well, so that no further ones are worth their time."""
        return len(self.failures) >= GIVE_UP_AFTER and not self.values

    def without(self, seeds: Collection[Any]) -> "Runs":
        """Return the runs of all other seeds."""

        def kept(by_seed: Mapping[Any, Any]) -> dict[Any, Any]:
            return {seed: value for seed, value in by_seed.items() if seed not in seeds}

        gave_up = [seed for seed in self.gave_up if seed not in seeds]
        return Runs(kept(self.values), kept(self.failures), kept(self.lengths), gave_up)


@dataclass(frozen=True)
class FailureCounts:
    """How many of a candidate's runs failed, by cause. `ended` counts all of its runs that have ended."""

    ended: int = 0
    errors: int = 0
    stopped_early: int = 0
    unknown: int = 0
    diverged: int = 0
    did_not_learn: int = 0
    left_out: int = 0  # pairs, because the baseline's run failed

    @property
    def failed(self) -> int:
        return self.errors + self.stopped_early + self.unknown + self.diverged + self.did_not_learn

    @property
    def without_result(self) -> int:
        """How many failed runs did not even diverge: they left no result that counts."""
        return self.errors + self.stopped_early + self.unknown

    def describe(self, candidate: str = "") -> str:
        """Return `3 of 6 runs of e4m3 failed (1 diverged, 1 stopped early)`; "" if none failed."""
        if not self.failed:
            return ""
        causes = (
            (self.diverged, "diverged"),
            (self.stopped_early, "stopped early"),
            (self.did_not_learn, "did not learn"),
            (self.unknown, "for an unknown reason"),
        )
        told = ", ".join(f"{count} {cause}" for count, cause in causes if count)
        of = f" of {candidate}" if candidate else ""
        return f"{self.failed} of {self.ended} runs{of} failed{f' ({told})' if told else ''}"

    def at_most(self, confidence: float) -> float | None:
        """Return the upper limit of the share of runs that fail; None if no run has ended."""
        return most_failing(self.failed, self.ended, confidence) if self.ended else None

    def describe_bound(self, confidence: float) -> str:
        """Return `0 of 9 runs failed (with 95 % confidence at most 28 % fail)`."""
        told, bound = self.describe() or f"0 of {self.ended} runs failed", self.at_most(confidence)
        if bound is None:
            return told
        return f"{told} (with {confidence:g} % confidence at most {100 * bound:.0f} % fail)"

    def describe_pairs(self) -> str:
        """Return `2 pairs left out because the baseline's run failed`; "" if there is none."""
        pairs = f"{self.left_out} pair{'s' if self.left_out != 1 else ''}"
        return f"{pairs} left out because the baseline's run failed" if self.left_out else ""


@dataclass(frozen=True)
class Compared:
    """What `evidence.differences` takes for either side, and what the failures mean for the verdict."""

    ours: dict[Any, float]  # NaN where a run counts as the worst value
    baseline: dict[Any, float]
    counts: FailureCounts

    @property
    def is_barred(self) -> bool:
        """Whether the candidate may not be certified, whatever its pairs say."""
        return self.counts.failed > 0


def compare_runs(candidate: Runs, baseline: Runs) -> Compared:
    """Return the values to compare by seed, and the failures, under the rule of this module.

    A seed that failed on both sides says nothing about the candidate and counts as no failure of it. A seed that
    diverged on both sides does count, as a run of the candidate that diverged.
    """
    full = full_length(baseline.lengths.values())
    early, baseline_early = stopped_early(candidate, full), stopped_early(baseline, full)
    lost = baseline.failures.keys() | baseline_early
    diverged = {seed for seed, value in candidate.values.items() if math.isnan(value)}
    ended = candidate.values.keys() | candidate.failures.keys()
    charged = ended - lost
    errors = {seed for seed, failure in candidate.failures.items() if failure is Failure.ERROR} & charged
    unknown = {seed for seed, failure in candidate.failures.items() if failure is Failure.UNKNOWN} & charged
    early &= charged
    ours = {seed: value for seed, value in candidate.values.items() if seed in charged}
    ours |= dict.fromkeys(errors | early, math.nan)
    counts = FailureCounts(
        ended=len(ended),
        errors=len(errors),
        stopped_early=len(early - diverged),
        unknown=len(unknown),
        diverged=len(diverged),
        did_not_learn=len(set(candidate.gave_up) - diverged - early - errors),
        left_out=len(ended & lost),
    )
    ours = {} if candidate.is_given_up else ours
    return Compared(ours, {s: value for s, value in baseline.values.items() if s not in lost}, counts)


def full_length(lengths: Iterable[int]) -> int:
    """Return how long a complete run is, from the lengths of the baseline's runs; 0 without any.

    That is the length that more than half of them have. If there is none, the program decides for each run when to
    stop, and only what is shorter than all of the baseline's runs is known to be incomplete.
    """
    counts = Counter(lengths)
    if not counts:
        return 0
    length, count = counts.most_common(1)[0]
    return length if 2 * count > counts.total() else min(counts)


def stopped_early(runs: Runs, full: int) -> set[Any]:
    """Return the seeds of the runs that are shorter than a full run."""
    return {seed for seed, length in runs.lengths.items() if length < full}


def most_failing(failed: int, samples: int, ci: float) -> float:
    """Return the upper limit, at `ci` per cent, of a share of which `failed` were seen among `samples`.

    This is the exact one-sided limit of C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits
    illustrated in the case of the binomial", Biometrika 26 (1934). For 0 of n it is about 3 / n at 95 %, the rule of
    three.
    """
    if failed >= samples:
        return 1.0
    if not failed:
        return float(1 - (1 - ci / 100) ** (1 / samples))
    low, high = failed / samples, 1.0
    for _ in range(60):
        share = (low + high) / 2
        at_most = math.fsum(
            math.comb(samples, k) * share**k * (1 - share) ** (samples - k) for k in range(failed + 1)
        )
        low, high = (share, high) if at_most > 1 - ci / 100 else (low, share)
    return high
