"""Read the part of a run's observed tensors that plots need.

These are the number of values in each binade and the largest magnitude, by role, layer and step. The file is written by
`cpdrun.whatif.collect.observation`, which also describes its full content.
"""

import json
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from cpdrun.record import OBSERVED_LAYOUT, RunDir, read_arrays

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
