"""Read more of the records of runs: their curves, their observed tensors, and which test examples they answered."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpdrun.record import (
    OBSERVED_LAYOUT,
    EpochRow,
    ExampleOutcomes,
    LoggedRow,
    RunDir,
    read_arrays,
    read_example_outcomes,
)
from cpdrun.stats.finite_test_set import example_error


def rows_of(run: RunDir) -> list[EpochRow]:
    """Return the rows of a run's curve.

    If a script logged no epochs, `epoch` holds the step, or the number of the row if the script logged no steps either.
    The result is empty if the file cannot be read.
    """
    try:
        if rows := list(run.rows()):
            return rows
        return [EpochRow(_place(row, n), metrics=row.metrics) for n, row in enumerate(run.logged(), 1)]
    except (OSError, RecursionError):  # there may be a folder in place of the file, or no right to read it
        return []


def unit_of(runs: Iterable[RunDir]) -> str:
    """Return the unit of the first run that has rows: "epoch", "step" or "row"; "epoch" if no run has rows."""
    for run in runs:
        try:
            if next(run.rows(), None) is not None:
                return "epoch"
            if (row := next(run.logged(), None)) is not None:
                return "row" if row.step is None else "step"
        except (OSError, RecursionError):
            continue
    return "epoch"


def _place(row: LoggedRow, number: int) -> int:
    return number if row.step is None else row.step


ROLES = ("gradient", "weight", "activation", "output_gradient", "update")
_COUNT = 0  # the index of the column that counts elements


@dataclass(frozen=True)
class ObservedStep:
    """The observed tensor of one role and layer in one step.

    Attributes:
        counts: The number of elements by floor(log2 |x|).
        largest: The largest magnitude over all workers.
    """

    counts: Counter
    largest: float


@dataclass(frozen=True)
class Observed:
    """The observed tensors of a run.

    Attributes:
        workers: The number of workers.
        steps: The number of observed steps.
        looks: The observed steps as looks[role][layer], in the order of the steps.
    """

    workers: int
    steps: int
    looks: dict[str, dict[str, list[ObservedStep]]] = field(default_factory=dict)


def read_observed(run: RunDir) -> Observed | None:
    """Return what a run observed, or None if it was not observed or its file is damaged or of another layout."""
    try:
        arrays = read_arrays(run.observed)
        said = json.loads(arrays["about"].tobytes())
        if said["layout"] != OBSERVED_LAYOUT:
            return None
        steps = {entry[0] for entries in said["seen"].values() for entry in entries}
        found = Observed(int(said["about"]["world_size"]), len(steps))
        for role in (role for role in ROLES if role in said["seen"]):
            binades, counts = arrays[f"{role}.binades"], arrays[f"{role}.rows"][:, _COUNT]
            _take(found, role, said["layers"][role], said["seen"][role], binades, counts)
        return found
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def _take(
    found: Observed, role: str, names: list[str], entries: list, binades: np.ndarray, counts: np.ndarray
) -> None:
    row, layers = 0, found.looks.setdefault(role, {})
    for _, place, n_binades, _, _, largest, *_ in entries:
        here = slice(row, row + n_binades)
        pairs = zip(binades[here].tolist(), counts[here].tolist(), strict=True)
        layers.setdefault(names[place], []).append(ObservedStep(Counter(dict(pairs)), float(largest)))
        row += n_binades


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
