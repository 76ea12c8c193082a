"""Compare the best mean of each format over a tuned axis, such as optim.lr, chosen after looking at the runs.

A facet with one learning rate compares formats at a value that may suit only one of them. A fair comparison gives each
format and the baseline its own value. This module chooses the value with the best mean over the compared seeds
(`cpdrun.stats.means`). This choice makes every row look better than it is, so the table certifies nothing.
`cpdrun search` with search.tune chooses the value on other seeds and certifies.

Tuned axes are the keys of `optim` that have numbers: lr, momentum and weight_decay. They are tuned for each training
anyway and do not change its cost, so nobody asks how many bits one of their values needs. Any other axis is part of the
question: batch_size and world_size change the cost and number of steps, another model is another training, and another
optimizer or Nesterov's momentum is another method.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cpdrun.report.study_text import tuned_text
from cpdrun.report.tables import Shown, column
from cpdrun.stats.means import choose, edges
from cpdrun.study import formats
from cpdrun.study.axes import (
    axis_text,
    axis_title,
    short_titles,
)
from cpdrun.study.collect import FORMAT, identity
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study

SECTION = "optim"


@dataclass(frozen=True)
class Best:
    """The best groups for one combination of the axes that are not tuned.

    Attributes:
        facet: The best group of each format and way of scaling, and of the baseline.
        baseline: The best group of the baseline, or None if it has no value or did not train.
        tried: The values of each tuned axis, in ascending order.
    """

    facet: Facet
    baseline: Group | None
    tried: dict[str, list[Any]]

    def values(self, group: Group) -> dict[str, Any]:
        """Return the values of the tuned axes of a group."""
        return {key: group.keys[key] for key in self.tried}


def tuned_axes(study: Study) -> list[str]:
    """Return the axes of the study that are tuned."""
    return [
        axis
        for axis in study.facet_axes
        if axis.split(".")[0] == SECTION and all(_is_number(group.keys[axis]) for group in study.groups)
    ]


def best_of(study: Study) -> list[Best]:
    """Return the best groups for each combination of the axes that are not tuned; an empty list if no axis is tuned."""
    axes = tuned_axes(study)
    families: dict[tuple[str, ...], list[Facet]] = {}
    for facet in study.facets if axes else []:
        keys = tuple(identity(value) for key, value in facet.keys.items() if key not in axes)
        families.setdefault(keys, []).append(facet)
    return [_best(study, facets, axes) for facets in families.values() if len(facets) > 1]


def sentences(study: Study) -> list[str]:
    """Return a warning that the table of the best means certifies nothing; an empty list if no axis is tuned."""
    found = best_of(study)
    if not found or study.margin.problem:
        return []
    typed = " ".join(
        f"search.tune.{key}={','.join(map(str, values))}" for key, values in found[0].tried.items()
    )
    titles = " and ".join(short_titles(found[0].tried).values())
    return [
        f"The table of the best {titles} of each format certifies nothing, because the {titles} was chosen after "
        f"looking at these same runs. cpdrun search with {typed} chooses on seeds of their own and certifies."
    ]


def shown(study: Study) -> Shown | None:
    """Return a table with a row for each format and way of scaling at its best value; None if no axis is tuned."""
    found = best_of(study)
    if not found:
        return None
    axes, tried = _other_axes(study), found[0].tried
    baseline = f"vs {study.baseline_name} at its best"
    header = [
        *map(axis_title, (study.bits_axis.key, "bits", *axes)),
        *(f"best {axis_title(k)}" for k in tried),
    ]
    rows = []
    for best in found:
        for group in best.facet.groups:
            ends = dict(edges(best.values(group), best.tried))
            bits = formats.bits(group.format)
            values = [tuned_text(value, ends.get(key)) for key, value in best.values(group).items()]
            gap = _gap(study, best, group)
            rows.append(
                [
                    group.name,
                    "-" if bits is None else f"{bits:g}",
                    *(axis_text(group.keys[axis]) for axis in axes),
                    *values,
                    str(len(group.values)),
                    study.metric.show(group.mean),
                    study.metric.show_difference(gap),
                ]
            )
    return Shown([*header, "n", study.metric.title, baseline], rows, 2 + len(axes) + len(tried))


def numbers(study: Study) -> pd.DataFrame:
    """Return the table of `shown` as numbers.

    Means and differences are in the metric's own unit. A positive difference is better than the baseline.
    """
    rows = []
    for best in best_of(study):
        for group in best.facet.groups:
            gap = _gap(study, best, group)
            keys = {FORMAT: group.format, **{axis: group.keys[axis] for axis in _other_axes(study)}}
            rows.append(
                {column(axis): value for axis, value in (keys | best.values(group)).items()}
                | {"n": len(group.values), f"{study.metric.name}_mean": group.mean}
                | {"vs_best_baseline": gap if math.isfinite(gap) else None, "chosen": "on these runs"}
            )
    return pd.DataFrame(rows)


def _best(study: Study, facets: Sequence[Facet], axes: Sequence[str]) -> Best:
    """Return the best groups of facets that differ only in the tuned axes."""
    arms: dict[tuple[str, ...], list[Group]] = {}
    for group in (group for facet in facets for group in facet.groups):
        arms.setdefault((group.strategy, identity(group.format), str(group.is_baseline)), []).append(group)
    better = study.metric.higher_is_better
    groups = [
        of[choose([list(group.ended.values()) for group in of], higher_is_better=better)]
        for of in arms.values()
    ]
    tried = {axis: _values(facets, axis) for axis in axes}
    keys = {key: value for key, value in facets[0].keys.items() if key not in axes}
    facet = Facet(keys, groups)
    usable = facet.baseline is not None and study.may_be_within(facet.baseline)
    return Best(facet, facet.baseline if usable else None, tried)


def _gap(study: Study, best: Best, group: Group) -> float:
    """Return the mean gap to the best baseline, or NaN for the baseline itself and for a group without pairs.

    The gap has no interval, because an interval ignores that both groups were chosen after looking at their runs.
    """
    if best.baseline is None or group is best.baseline or not group.values:
        return math.nan
    return study.compare(group, best.baseline).mean


def _values(facets: Sequence[Facet], axis: str) -> list[Any]:
    return sorted({group.keys[axis] for facet in facets for group in facet.groups})


def _other_axes(study: Study) -> list[str]:
    tuned = tuned_axes(study)
    return [
        axis
        for axis in ("aps", "world_size", *study.axes)
        if axis not in tuned and axis != study.bits_axis.key
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
