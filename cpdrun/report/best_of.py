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


def best_table(study: Study) -> tuple[pd.DataFrame, Shown] | None:
    """Return the table as numbers and as text; None if no axis is tuned.

    There is one row per format, gradient scaling and setting of the axes that are not tuned. Numbers are in the
    metric's own unit, and positive differences are better.
    """
    found = best_of(study)
    if not found:
        return None
    axes, tried, numbers, rows = other_axes(study), found[0].tried, [], []
    for best in found:
        for group in best.facet.groups:
            chosen, gap = best.values(group), gap_to_best(study, best, group)
            keys = {FORMAT: group.format, **{axis: group.keys[axis] for axis in axes}}
            numbers.append(
                {column(axis): value for axis, value in (keys | chosen).items()}
                | {"n": len(group.values), f"{study.metric.name}_mean": group.mean}
                | {"vs_best_baseline": gap if math.isfinite(gap) else None, "chosen": "on these runs"}
            )
            bits, ends = formats.bits(group.format), dict(edges(chosen, best.tried))
            labels = [group.name, "-" if bits is None else f"{bits:g}"]
            labels += [axis_text(group.keys[axis]) for axis in axes]
            labels += [tuned_text(value, ends.get(key)) for key, value in chosen.items()]
            difference = study.metric.show_difference(gap)
            rows.append([*labels, str(len(group.values)), study.metric.show(group.mean), difference])
    header = [axis_title(key) for key in (study.bits_axis.key, "bits", *axes)]
    header += [f"best {axis_title(key)}" for key in tried]
    n_labels = len(header)
    header += ["n", study.metric.title, f"vs {study.baseline_name} at its best"]
    return pd.DataFrame(numbers), Shown(header, rows, n_labels)
