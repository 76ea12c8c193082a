"""Define how failed runs count in a comparison, and bound a failure rate.

`compare_runs` applies these rules for searches, reports, claims, and imported results:

- A candidate's run fails if it diverges, ends with an error of its own, or stops earlier than a full run. It counts as
  the worst value of the metric, and bars the candidate from being certified, unless the baseline's run of the same seed
  failed too. Leaving failed seeds out would keep only the survivors.
- A candidate's run that ended for an unknown reason, such as a signal, has no value. It also bars the candidate,
  because the run itself may have been the cause.
- If a run of the baseline failed, its pair is left out.
- A run that was stopped on request, or that has not ended, is no failure.
- If several runs of a candidate failed and none has a value, the candidate has no pairs, because the cause may not be
  the format.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# After this many failed runs without a value, a candidate is given up: no further runs are started.
GIVE_UP_AFTER = 2


class Failure(StrEnum):
    """Why a run has no value that counts."""

    ERROR = "error"  # The run ended with an error of its own.
    UNKNOWN = "unknown"  # The cause is not known: a signal, a hang, or no exit.json.


@dataclass(frozen=True)
class Runs:
    """The ended runs of one candidate or baseline.

    Attributes:
        values: The metric of each run, keyed by seed. A run that diverged has NaN.
        failures: The reasons why runs have no value, keyed by seed.
        lengths: The numbers of epochs, steps, or rows, keyed by seed. Only runs whose program decides when to stop have
            an entry, because the records of others say whether they are complete.
        gave_up: The seeds of the runs that ended early because they did not learn.
    """

    values: Mapping[Any, float] = field(default_factory=dict)
    failures: Mapping[Any, Failure] = field(default_factory=dict)
    lengths: Mapping[Any, int] = field(default_factory=dict)
    gave_up: Collection[Any] = ()

    @property
    def is_given_up(self) -> bool:
        """Whether to start no further runs: GIVE_UP_AFTER runs failed, and none has a value."""
        return len(self.failures) >= GIVE_UP_AFTER and not self.values

    def without(self, seeds: Collection[Any]) -> "Runs":
        """Return the runs of all other seeds."""

        def kept(by_seed: Mapping[Any, Any]) -> dict[Any, Any]:
            return {seed: value for seed, value in by_seed.items() if seed not in seeds}

        gave_up = [seed for seed in self.gave_up if seed not in seeds]
        return Runs(kept(self.values), kept(self.failures), kept(self.lengths), gave_up)


@dataclass(frozen=True)
class FailureCounts:
    """The number of a candidate's failed runs for each cause.

    Attributes:
        ended: The number of all runs that have ended.
        errors: Runs that ended with an error of their own.
        stopped_early: Runs that stopped earlier than a full run.
        unknown: Runs that ended for an unknown reason.
        diverged: Runs that diverged.
        did_not_learn: Runs that were stopped because they did not learn.
        left_out: Pairs that are left out because the baseline's run failed.
    """

    ended: int = 0
    errors: int = 0
    stopped_early: int = 0
    unknown: int = 0
    diverged: int = 0
    did_not_learn: int = 0
    left_out: int = 0

    @property
    def failed(self) -> int:
        """The number of failed runs."""
        return self.errors + self.stopped_early + self.unknown + self.diverged + self.did_not_learn

    @property
    def without_result(self) -> int:
        """The number of failed runs without a result. Runs that diverged or did not learn have one."""
        return self.errors + self.stopped_early + self.unknown

    def at_most(self, confidence: float) -> float | None:
        """Return the upper confidence limit of the failure rate, from 0 to 1, or None if no run has ended.

        The limit is one-sided, and `confidence` is in percent.
        """
        return most_failing(self.failed, self.ended, confidence) if self.ended else None


@dataclass(frozen=True)
class Compared:
    """The values of a candidate and its baseline, ready for `evidence.differences`.

    Attributes:
        ours: The candidate's values, keyed by seed. A run that counts as the worst value has NaN.
        baseline: The baseline's values, keyed by seed.
        counts: How many of the candidate's runs failed.
    """

    ours: dict[Any, float]
    baseline: dict[Any, float]
    counts: FailureCounts

    @property
    def is_barred(self) -> bool:
        """Whether a failed run bars the candidate from being certified, whatever its pairs show."""
        return self.counts.failed > 0


def compare_runs(candidate: Runs, baseline: Runs) -> Compared:
    """Apply the rules of this module to a candidate and its baseline.

    A failure is not counted against the candidate if the baseline's run of the same seed failed, unless both diverged.
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
    """Return the length of a complete run, given the lengths of the baseline's runs.

    This is the length of more than half of them. If there is no such length, the program seems to decide for each run
    when to stop. A run is then incomplete only if it is shorter than all of them, so the smallest length is returned.
    Without lengths, the result is 0.
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
    """Return the one-sided upper confidence limit of a failure rate, given the confidence in percent.

    This is the exact limit of C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits illustrated in
    the case of the binomial", Biometrika 26 (1934). For 0 of n failures, it is about 3 / n at 95% (the rule of three).
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


FEWEST_SEEDS = 2  # A single equal run may be chance.


def are_identical(ours: Mapping[Any, str], theirs: Mapping[Any, str]) -> bool:
    """Return True if two cells share at least two seeds, and their fingerprints agree on all of them."""
    shared = ours.keys() & theirs.keys()
    return len(shared) >= FEWEST_SEEDS and all(ours[seed] == theirs[seed] for seed in shared)


def identical_groups(cells: Mapping[str, Mapping[Any, str]]) -> list[list[str]]:
    """Return lists of identical cells, given the fingerprints of each cell's runs by seed."""
    groups: list[list[str]] = []
    for name, fingerprints in cells.items():
        same = next((group for group in groups if are_identical(cells[group[0]], fingerprints)), None)
        if same is None:
            groups.append([name])
        else:
            same.append(name)
    return [group for group in groups if len(group) > 1]
