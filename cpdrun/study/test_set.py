"""Compute the error of a gap that is due to the choice of the test examples."""

from dataclasses import dataclass

import numpy as np

from cpdrun.stats.finite_test_set import ExampleError, example_error
from cpdrun.study.group import Group
from cpdrun.study.study import Study


@dataclass(frozen=True)
class FiniteTestSet:
    """A candidate's gap with its error due to the test examples, in shares such as 0.01.

    Attributes:
        samples: The number of examples in the test set.
        pairs: The number of pairs.
        error: The mean gap (positive is better) with its error.
        low: The lower end of the prediction interval for another test set of the same size. NaN if the error is 0.
        high: The upper end of the interval.
    """

    samples: int
    pairs: int
    error: ExampleError
    low: float
    high: float


def finite_test_set(study: Study, group: Group) -> FiniteTestSet | None:
    """Return a candidate's gap with its error due to the choice of the test examples.

    The result is None if the group has no baseline, if `Study.may_be_within` excludes it, if a run of its pairs
    did not record its answers for the compared metric, or if the runs answered different test sets.
    """
    baseline = study.baselines.get(group)
    if baseline is None or baseline is group or not study.may_be_within(group):
        return None
    ours, theirs = group.example_outcomes, baseline.example_outcomes
    pairs = [(ours[seed], theirs[seed]) for seed in ours.keys() & theirs.keys()]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    test_sets = {(side.metric, side.samples, side.labels_sha256) for pair in known for side in pair}
    if len(known) < len(pairs) or len(test_sets) != 1:
        return None
    ((metric, samples, _),) = test_sets
    if metric != study.metric.name:
        return None
    error = example_error([a.unpack().astype(np.int64) - b.unpack() for a, b in known])
    return FiniteTestSet(samples, len(pairs), error, *error.on_another_test_set(study.ci / 100))
