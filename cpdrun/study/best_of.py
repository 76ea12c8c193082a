"""Compare formats at their best values of a tuned axis, such as optim.lr.

A learning rate may suit only one format. For a fair comparison, this module chooses the rate with the best mean over
the seeds for each format and for the baseline. The choice uses the compared runs, so every format looks too good, and
nothing is certified. `cpdrun search` with search.tune chooses on other seeds, so it can certify.

Tuned axes are the keys of `optim` with numbers: lr, momentum, and weight_decay. They do not change a training's cost,
and users tune them anyway. All other axes are kept apart, because they change the cost, the training, or the method.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.stats.means import as_float, choose
from cpdrun.study.collect import identity
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study, compare

SECTION = "optim"


@dataclass(frozen=True)
class Best:
    """The best groups for one combination of values on the axes that are not tuned.

    Attributes:
        facet: The best group of each format and gradient scaling, and the best baseline.
        baseline: The best baseline. None if it has no value, failed, or did not learn.
        tried: The values of each tuned axis, in ascending order.
    """

    facet: Facet
    baseline: Group | None
    tried: dict[str, list[Any]]

    def values(self, group: Group) -> dict[str, Any]:
        return {key: group.keys[key] for key in self.tried}


def tuned_axes(study: Study) -> list[str]:
    """Return the study's tuned axes: the keys of `optim` with a number in every group."""
    return [
        axis
        for axis in study.facet_axes
        if axis.split(".")[0] == SECTION
        and all(math.isfinite(as_float(group.keys[axis])) for group in study.groups)
    ]


def best_of(study: Study) -> list[Best]:
    """Return the best groups of each combination of the axes that are not tuned."""
    axes = tuned_axes(study)
    families: dict[tuple[str, ...], list[Facet]] = {}
    for facet in study.facets if axes else []:
        keys = tuple(identity(value) for key, value in facet.keys.items() if key not in axes)
        families.setdefault(keys, []).append(facet)
    return [_best(study, facets, axes) for facets in families.values() if len(facets) > 1]


def _best(study: Study, facets: Sequence[Facet], axes: Sequence[str]) -> Best:
    """Return the best groups of facets that differ only in tuned axes."""
    arms: dict[tuple[str, ...], list[Group]] = {}
    for group in (group for facet in facets for group in facet.groups):
        arms.setdefault((group.strategy, identity(group.format), str(group.is_baseline)), []).append(group)
    better = study.metric.higher_is_better
    groups = [
        of[choose([list(group.outcomes.values.values()) for group in of], higher_is_better=better)]
        for of in arms.values()
    ]
    tried = {axis: _values(facets, axis) for axis in axes}
    keys = {key: value for key, value in facets[0].keys.items() if key not in axes}
    facet = Facet(keys, groups)
    usable = facet.baseline is not None and study.may_be_within(facet.baseline)
    return Best(facet, facet.baseline if usable else None, tried)


def gap_to_best(study: Study, best: Best, group: Group) -> float:
    """Return the mean difference between a group and the best baseline.

    NaN for the baseline itself and for a group without values. There is no interval, because it would ignore that both
    groups were chosen after looking at their runs.
    """
    if best.baseline is None or group is best.baseline or not group.values:
        return math.nan
    return compare(study, group, best.baseline).mean


def _values(facets: Sequence[Facet], axis: str) -> list[Any]:
    return sorted({group.keys[axis] for facet in facets for group in facet.groups})


def other_axes(study: Study) -> list[str]:
    """Return the axes of a study that are neither tuned nor the axis of bits."""
    tuned = tuned_axes(study)
    return [
        axis
        for axis in ("aps", "world_size", *study.axes)
        if axis not in tuned and axis != study.bits_axis.key
    ]
