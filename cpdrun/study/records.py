"""Read the larger files of runs' records: curves, observed tensors, and which test examples were answered correctly."""

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
    RunDir,
    read_arrays,
    read_example_outcomes,
)
from cpdrun.stats.finite_test_set import example_error


def rows_of(run: RunDir) -> list[EpochRow]:
    """Return the rows of a run's curve, or an empty list if the file cannot be read.

    If a script logged no epochs, `EpochRow.epoch` is the step instead. If it logged no steps either, it is the number
    of the row.
    """
    try:
        if rows := list(run.rows()):
            return rows
        return [
            EpochRow(n if row.step is None else row.step, metrics=row.metrics)
            for n, row in enumerate(run.logged(), 1)
        ]
    except (OSError, RecursionError):  # The file may be missing or unreadable, or may be a folder.
        return []


def unit_of(runs: Iterable[RunDir]) -> str:
    """Return the unit in which rows are counted: "epoch", "step", or "row".

    The first run that has rows decides. If no run has rows, the result is "epoch".
    """
    for run in runs:
        try:
            if next(run.rows(), None) is not None:
                return "epoch"
            if (row := next(run.logged(), None)) is not None:
                return "row" if row.step is None else "step"
        except (OSError, RecursionError):
            continue
    return "epoch"


ROLES = ("gradient", "weight", "activation", "output_gradient", "update")
_COUNT = 0  # The column with this index contains the number of elements.


@dataclass(frozen=True)
class ObservedStep:
    """The observations of one layer's tensor in one step. The tensor's role is one of ROLES.

    Attributes:
        counts: The number of elements, keyed by floor(log2 |x|).
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
        looks: The observations of each tensor, in the order of the steps: looks[role][layer] is a list of ObservedStep.
    """

    workers: int
    steps: int
    looks: dict[str, dict[str, list[ObservedStep]]] = field(default_factory=dict)


def read_observed(run: RunDir) -> Observed | None:
    """Return the observed tensors of a run.

    If nothing was observed, or if the file is damaged or has another layout, the result is None.
    """
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
    """The gap between a candidate and its baseline, and its error due to the test examples, as fractions.

    Attributes:
        samples: The number of examples in the test set.
        pairs: The number of seeds for which both the candidate and the baseline have a run.
        gap: The mean difference in accuracy. It is positive if the candidate is better.
        standard_error: The standard error of the gap, for these runs, due to the choice of the test examples alone.
        lasting_error: The part of the standard error that remains with any number of further seeds. NaN for one pair.
        low: The lower end of the prediction interval for the gap of these runs on another test set of the same size.
        high: The upper end of this interval. If the standard error is 0, both ends are NaN, because equal answers
            contain no information about the spread.
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
        The outcomes. If the run has no readable record of outcomes, or if they belong to another metric, the result is
        None.
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
    """Return the gap between a candidate and its baseline, and its error due to the test examples.

    Only seeds for which both have a run are used.

    Args:
        ours: The candidate's outcomes, keyed by seed. A run that did not record them has None.
        baseline: The baseline's outcomes, keyed by seed. A run that did not record them has None.
        confidence: The confidence of the prediction interval as a share, such as 0.95.

    Returns:
        The gap and its error. If there is no pair, if a run of a pair has no outcomes, or if the runs were not all
        evaluated on the same test set, the result is None.
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
