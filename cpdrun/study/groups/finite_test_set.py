"""How uncertain the gap between a candidate and its baseline is because the test set is a finite sample."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpdrun.record import ExampleOutcomes, RunDir, read_example_outcomes
from cpdrun.stats.finite_test_set import example_error


@dataclass(frozen=True)
class FiniteTestSet:
    """The gap of a candidate to its baseline, and its error due to the test examples, as fractions.

    Attributes:
        samples: The number of examples in the test set.
        pairs: The number of seeds with a run of the candidate and a run of the baseline.
        gap: The mean difference in accuracy. Positive if the candidate is better.
        standard_error: The standard error of the gap of these runs that is due to the choice of the examples alone.
        lasting_error: The part of the standard error that no number of further seeds removes. NaN for one pair.
        low: The lower end of the interval in which the gap of these runs lies on another test set of the same size.
        high: The upper end of the interval. Both ends are NaN if the standard error is 0, because equal answers
            measure no spread.
    """

    samples: int
    pairs: int
    gap: float
    standard_error: float
    lasting_error: float
    low: float
    high: float


def read_outcomes(run: RunDir, metric: str) -> ExampleOutcomes | None:
    """Return which test examples a run answered correctly.

    Args:
        run: The run.
        metric: The accuracy metric that the outcomes must belong to.

    Returns:
        None if the run has no readable record of outcomes, or if the recorded outcomes belong to another metric.
    """
    result = run.result()
    try:
        outcomes = None if result is None else read_example_outcomes(run, result)
    except (OSError, ValueError):
        return None
    return outcomes if outcomes is not None and outcomes.metric == metric else None


def finite_test_set(
    ours: Mapping[Any, ExampleOutcomes | None],
    baseline: Mapping[Any, ExampleOutcomes | None],
    confidence: float,
) -> FiniteTestSet | None:
    """Return the error due to the test examples over the seeds that both sides have.

    Args:
        ours: The candidate's outcomes by seed. None for a run that has not recorded them.
        baseline: The baseline's outcomes by seed. None for a run that has not recorded them.
        confidence: The confidence of the interval as a share, such as 0.95.

    Returns:
        None if there is no pair, if a run of a pair has no outcomes, or if the runs were not all evaluated on the same
        test set.
    """
    pairs = [(ours[seed], baseline[seed]) for seed in ours.keys() & baseline.keys()]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    test_sets = {(side.samples, side.labels_sha256) for pair in known for side in pair}
    if len(known) < len(pairs) or len(test_sets) != 1:
        return None
    found = example_error([a.unpack().astype(np.int64) - b.unpack() for a, b in known])
    ends = found.on_another_test_set(confidence)
    ((samples, _),) = test_sets
    return FiniteTestSet(samples, len(pairs), found.mean, found.standard_error, found.lasting, *ends)
