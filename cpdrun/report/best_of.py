"""Make the table of each format at its best value of a tuned axis, such as optim.lr."""

import math

import pandas as pd

from cpdrun.report.study_text import tuned_text
from cpdrun.report.tables import Shown, column
from cpdrun.stats.means import edges
from cpdrun.study import formats
from cpdrun.study.axes import axis_text, axis_title
from cpdrun.study.best_of import best_of, gap_to_best, other_axes
from cpdrun.study.collect import FORMAT
from cpdrun.study.study import Study


def shown(study: Study) -> Shown | None:
    """Return the table as text; None if no axis is tuned.

    There is one row per format, gradient scaling and setting of the axes that are not tuned.
    """
    found = best_of(study)
    if not found:
        return None
    axes, tried = other_axes(study), found[0].tried
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
            gap = gap_to_best(study, best, group)
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
    """Return the table as numbers, in the metric's own unit. Positive differences are better."""
    rows = []
    for best in best_of(study):
        for group in best.facet.groups:
            gap = gap_to_best(study, best, group)
            keys = {FORMAT: group.format, **{axis: group.keys[axis] for axis in other_axes(study)}}
            rows.append(
                {column(axis): value for axis, value in (keys | best.values(group)).items()}
                | {"n": len(group.values), f"{study.metric.name}_mean": group.mean}
                | {"vs_best_baseline": gap if math.isfinite(gap) else None, "chosen": "on these runs"}
            )
    return pd.DataFrame(rows)
