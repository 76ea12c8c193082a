"""Read the larger files of run directories: curves and observed tensors."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cpdrun.record import OBSERVED_LAYOUT, EpochRow, RunDir, read_arrays, read_config


def rows_of(run: RunDir) -> list[EpochRow]:
    """Return the rows of a run's curve, or an empty list if the file cannot be read.

    If a script logged no epochs, `EpochRow.epoch` contains the step or, without a step, the row's number.
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
    """Return the unit in which curves count: "epoch", "step", or "row".

    The first run with rows decides. Without rows, the result is "epoch".
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


def checkpoint_of(run: RunDir) -> str | None:
    """Return the path of the checkpoint from which a run started (`init_from`). None if there is none."""
    try:
        found = read_config(run).get("init_from")
    except (OSError, ValueError):  # Records from elsewhere may have no config.
        return None
    return None if found is None else str(found)


ROLES = ("gradient", "weight", "activation", "output_gradient", "update")
_COUNT = 0  # The column with this index contains the number of elements.


@dataclass(frozen=True)
class ObservedStep:
    """One layer's tensor in one observed step.

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
        looks: The ObservedSteps in order, as looks[role][layer]. The role is one of ROLES.
    """

    workers: int
    steps: int
    looks: dict[str, dict[str, list[ObservedStep]]] = field(default_factory=dict)


def read_observed(run: RunDir) -> Observed | None:
    """Return the observed tensors of a run, or None if they cannot be read."""
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
