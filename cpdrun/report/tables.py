"""The tables of means, as numbers and as shown; one row a combination of axes, its seeds averaged."""

import math
from dataclasses import dataclass

import pandas as pd

from cpdrun.report import formats
from cpdrun.report.study import Group, Study
from cpdrun.report.words import SWEEP, axis_text, axis_title


@dataclass(frozen=True)
class Shown:
    """A table as a reader sees it: text, ready for any markup."""

    header: list[str]
    rows: list[list[str]]
    n_labels: int = 1  # leading columns that say what a row is; the others are figures


def frame(study: Study) -> pd.DataFrame:
    """table.csv: format, bits, aps, world_size, the other axes, n, METRIC_mean, METRIC_ciNN, diverged.

    Means and half-widths are in the metric's own unit (a fraction 0..1 for an accuracy). `n` counts the seeds
    that the mean is over; `diverged`, the runs that ended so: their measured value is in the mean.
    """
    table = pd.DataFrame([_numbers(study, group) for group in study.groups])
    table["bits"] = _whole_if_possible(table["bits"])
    return table


def details(study: Study) -> pd.DataFrame:
    """As `frame`, then the difference to fp32 and how it was judged, bytes on the wire, and seconds.

    vs_fp32 is positive where a format does better, whichever way the metric points; its interval is paired by
    seed where both sides ran the same seeds, Welch's otherwise (`vs_fp32_method`).
    """
    rows = []
    for group in study.groups:
        gap = study.against_baseline(group)
        rows.append(
            _numbers(study, group)
            | {
                "vs_fp32": gap.mean if gap else math.nan,
                f"vs_fp32_ci{study.ci:g}": gap.half_width if gap else math.nan,
                "vs_fp32_method": gap.method if gap else "",
                "bytes_per_step": group.wire_bytes,
                "model_bytes": group.model_bytes,
                "optimizer_bytes": group.optimizer_bytes,
                "train_seconds": group.train_seconds,
            }
        )
    table = pd.DataFrame(rows)
    table["bits"] = _whole_if_possible(table["bits"])
    return table


def brief(study: Study) -> Shown:
    """For the terminal."""
    axes = _axes(study)
    header = [
        "format",
        "bits",
        *map(axis_title, axes),
        "n",
        study.metric.title,
        study.metric.difference_title,
        "diverged",
    ]
    rows = [
        [*_labels(group, axes), str(len(group.values)), *_result(study, group), str(group.diverged)]
        for group in study.groups
    ]
    return Shown(header, rows, 2 + len(axes))


def full(study: Study) -> Shown:
    """For a page: as `brief`, and what is sent; what a worker keeps too, where that differs between rows."""
    table, sizes = brief(study), byte_counts(study)
    rows = [[*row, *(show_bytes(counts[i]) for counts in sizes.values())] for i, row in enumerate(table.rows)]
    return Shown([*table.header, *sizes], rows, table.n_labels)


def byte_counts(study: Study) -> dict[str, list[float]]:
    """The columns of `full` that count bytes, by their heading: a number for each group."""
    sent = {"bytes sent a step": [group.wire_bytes for group in study.groups]}
    kept = {
        "model": [group.model_bytes for group in study.groups],
        "optimizer": [group.optimizer_bytes for group in study.groups],
    }
    return sent | {name: counts for name, counts in kept.items() if len(set(_known(counts))) > 1}


def _known(counts: list[float]) -> list[float]:
    return [count for count in counts if math.isfinite(count)]


def show_bytes(count: float) -> str:
    """`42 B`, `13.2 kB`, `1.4 MB`: decimal, as networks are measured."""
    if not math.isfinite(count):
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"


def column(axis: str) -> str:
    """An axis's name as a column of a csv."""
    return "sweep" if axis == SWEEP else axis


def _numbers(study: Study, group: Group) -> dict:
    row = {"format": group.format, "bits": formats.bits(group.format)}
    row |= {column(axis): group.keys[axis] for axis in _axes(study)} | {"n": len(group.values)}
    mean, half_width = study.interval(group)
    name = study.metric.name
    return row | {f"{name}_mean": mean, f"{name}_ci{study.ci:g}": half_width, "diverged": group.diverged}


def _axes(study: Study) -> list[str]:
    return ["aps", "world_size", *study.axes]


def _labels(group: Group, axes: list[str]) -> list[str]:
    bits = formats.bits(group.format)
    return [group.name, "-" if bits is None else str(bits), *(axis_text(group.keys[a]) for a in axes)]


def _result(study: Study, group: Group) -> list[str]:
    gap = study.against_baseline(group)
    difference = study.metric.show_difference(gap.mean, gap.half_width) if gap else "-"
    return [study.metric.show(*study.interval(group)), difference]


def _whole_if_possible(bits: pd.Series) -> pd.Series:
    """Whole numbers, but where a format's scales take their share: 8.25."""
    numbers = bits.astype("Float64")
    return numbers if (numbers.dropna() % 1 != 0).any() else numbers.astype("Int64")
