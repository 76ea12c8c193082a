"""Find cells whose runs are equal bit for bit. Their differences are zero by construction and contain no noise.

A cell consists of the runs that differ only in their seed.
"""

from collections.abc import Mapping
from typing import Any

FEWEST_SEEDS = 2  # a single equal run may be chance


def are_identical(ours: Mapping[Any, str], theirs: Mapping[Any, str]) -> bool:
    """Return whether the runs of two cells are equal for every seed that both have, and there are at least two.

    Args:
        ours: The fingerprints of the first cell's runs, by seed.
        theirs: The fingerprints of the second cell's runs, by seed.
    """
    shared = ours.keys() & theirs.keys()
    return len(shared) >= FEWEST_SEEDS and all(ours[seed] == theirs[seed] for seed in shared)


def identical_groups(cells: Mapping[str, Mapping[Any, str]]) -> list[list[str]]:
    """Return groups of at least two cells that are identical to each other, by their names.

    Args:
        cells: The fingerprints of each cell's runs by seed, by the name of the cell.
    """
    groups: list[list[str]] = []
    for name, fingerprints in cells.items():
        same = next((group for group in groups if are_identical(cells[group[0]], fingerprints)), None)
        if same is None:
            groups.append([name])
        else:
            same.append(name)
    return [group for group in groups if len(group) > 1]
