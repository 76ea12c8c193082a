"""The best mean of each format over a tuned axis, such as a sweep over optim.lr, chosen after looking at the runs.

Facets of one learning rate compare formats at a value that may suit only one of them. A fair comparison gives each
format its own value, and the baseline too. Here that is the value with the best mean over the compared seeds
(`cpdrun.stats.tuning`), which flatters every row, so nothing is certified by it. `cpdrun search` with search.tune
chooses on other seeds and certifies.

Tuned axes are the keys of `optim` that have numbers: lr, momentum, weight_decay. They are set anew for whatever is
trained and are no part of its price, so that nobody asks for the bits at one of them. Any other axis is part of the
question: batch_size and world_size change what a step costs and how many there are, a model is another thing to
train, and the choice of an optimizer, or of Nesterov's momentum, is another method.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cpdrun.report.tables import Shown, column
from cpdrun.stats.tuning import choose, edges
from cpdrun.study.axes import formats
from cpdrun.study.axes.titles import (
    axis_text,
    axis_title,
    short_titles,
    tuned_text,
)
from cpdrun.study.collect import FORMAT, identity
from cpdrun.study.groups.group import Facet, Group
from cpdrun.study.study import Study

SECTION = "optim"


@dataclass(frozen=True)
class Best:
    """Of one combination of the other axes: of each format and scaling the group that did best, the baseline's too."""

    facet: Facet
    baseline: Group | None
    tried: dict[str, list[Any]]  # of each tuned axis

    def values(self, group: Group) -> dict[str, Any]:
        return {key: group.keys[key] for key in self.tried}


def tuned_axes(study: Study) -> list[str]:
    """Those of the study that are for tuning."""
    return [
        axis
        for axis in study.facet_axes
        if axis.split(".")[0] == SECTION and all(_is_number(group.keys[axis]) for group in study.groups)
    ]


def best_of(study: Study) -> list[Best]:
    """One for each combination of the other axes; none where no tuned axis varies."""
    axes = tuned_axes(study)
    families: dict[tuple[str, ...], list[Facet]] = {}
    for facet in study.facets if axes else []:
        keys = tuple(identity(value) for key, value in facet.keys.items() if key not in axes)
        families.setdefault(keys, []).append(facet)
    return [_best(study, facets, axes) for facets in families.values() if len(facets) > 1]


def sentences(study: Study) -> list[str]:
    """Return what the table of the best means is worth; nothing if no tuned axis varies."""
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
    """A row a format and scaling, at its best; the tuned axes beside it. None where no tuned axis varies."""
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
    """The same; means and differences in the metric's own unit, a positive difference is better."""
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
    """Return the mean gap to the baseline at its best. It has no interval, which would be that of two groups that
    nobody chose. NaN for the baseline and without pairs."""
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
