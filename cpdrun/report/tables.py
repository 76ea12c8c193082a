"""The tables of means, as numbers and as shown; one row a combination of axes, its seeds averaged."""

import math
from dataclasses import dataclass

import pandas as pd

from cpdrun.report.cost.axes import bit_operations, show_bytes, show_count, show_transistors, transistors
from cpdrun.stats.intervals import is_zero, mean_interval, unseen_share
from cpdrun.study.axes.titles import SWEEP, axis_text, axis_title
from cpdrun.study.collect import FORMAT, SEED, finished
from cpdrun.study.groups.group import Group
from cpdrun.study.groups.tuned import USE
from cpdrun.study.groups.verdicts import MARKS
from cpdrun.study.study import Study

# what a worker keeps in memory, by its heading
KEPT = {"model": "model_bytes", "optimizer": "optimizer_bytes", "activations": "activation_bytes"}

_BITS_TITLE = "bits a parameter a step"
_OPERATIONS_TITLE, _AREA_TITLE = "bit operations a step", "transistors a unit"
OPERATIONS, MACS, AREA = "bit_operations_per_step", "macs_per_step", "transistors_per_mac"
BITS_A_PARAMETER = "bits_per_parameter_per_step"

# columns of ours in table.csv and details.csv, beside those that begin with the metric's name
_OF_VERDICT = (
    "verdict",
    "pairs",
    "anytime_low",
    "anytime_high",
    "seeds_needed",
    "runs_failed",
    "at_most_fail",
)
OWN = {
    "sweep",
    "bits",
    "n",
    "diverged",
    "learnt",
    "gave_up",
    "baseline",
    "vs_baseline",
    "vs_baseline_method",
    *_OF_VERDICT,
    "hybrid",
    "test_samples",
    "longest_chain",
    "bytes_per_step",
    "parameters",
    BITS_A_PARAMETER,
    MACS,
    OPERATIONS,
    AREA,
    "train_seconds",
    *KEPT.values(),
}


@dataclass(frozen=True)
class Shown:
    """A table as a reader sees it: text, ready for any markup."""

    header: list[str]
    rows: list[list[str]]
    n_labels: int = 1  # leading columns that say what a row is; the others are figures


def frame(study: Study) -> pd.DataFrame:
    """table.csv: format, bits, aps, world_size, the other axes, n, METRIC_mean, METRIC_ciNN, diverged, and
    bits_per_parameter_per_step where a record has it.

    Means and half-widths are in the metric's own unit (a fraction 0..1 for an accuracy). The half-width is that of
    Student's t over the seeds alone, empty where all seeds are equal: that is no certainty. `n` counts the seeds
    that the mean is over; `diverged`, the runs that ended so: their measured value is in the mean.
    """
    table = pd.DataFrame([_numbers(study, group) for group in study.groups])
    table["bits"] = _whole_if_possible(table["bits"])
    if _known(sent := _bits_a_parameter(study)):
        table[BITS_A_PARAMETER] = sent
    return table


def details(study: Study) -> pd.DataFrame:
    """As `frame`, then the ends of the interval with the test set's own error in it, the difference to the baseline and
    how it was judged, whether it learnt, how many runs gave up (give_up_after), the longest chain of rounded
    additions, bytes on the wire and in memory, and seconds; where a record has them a step's multiply-accumulates, its
    bit operations, and the transistors of a multiply-accumulate unit, the mean over them (cost/axes.py).

    `baseline` says what a row is compared with: fp32, as a rule; it is empty for the baseline itself and where there is
    none. vs_baseline is positive where a format does better, whichever way the metric points; its interval is paired by
    seed where both sides ran the same seeds, Welch's otherwise (`vs_baseline_method`). `verdict` is that of the
    anytime-valid test over `pairs`, whose interval is from `anytime_low` to `anytime_high`; `seeds_needed` is about how
    many would settle it, empty where no practical number would. `runs_failed` counts the runs that failed, diverged or
    did not learn; if none did, at most `at_most_fail` of them do, with the confidence of the report.
    """
    rows = []
    for group in study.groups:
        gap, interval, name = study.against_baseline(group), study.interval(group), study.metric.name
        rows.append(
            _numbers(study, group)
            | {
                f"{name}_low": interval.low,
                f"{name}_high": interval.high,
                "learnt": study.learnt(group) if group.values else None,
                "gave_up": group.gave_up,
                "baseline": study.baseline_name if gap else "",
                "vs_baseline": gap.mean if gap else math.nan,
                f"vs_baseline_ci{study.ci:g}": gap.half_width if gap else math.nan,
                "vs_baseline_method": gap.method if gap else "",
                **_judged(study, group),
                "hybrid": group.hybrid,
                "test_samples": group.test_samples,
                "longest_chain": group.longest_chain,
                "bytes_per_step": group.wire_bytes,
                "parameters": group.figures["parameters"],
                BITS_A_PARAMETER: group.bits_a_parameter,
                **{key: group.figures[key] for key in (*KEPT.values(), "train_seconds")},
                MACS: _macs(group),
                OPERATIONS: bit_operations(group),
                AREA: transistors(group)[0],
            }
        )
    table = pd.DataFrame(rows)
    table["bits"] = _whole_if_possible(table["bits"])
    return table


def brief(study: Study) -> Shown:
    """For the terminal. Bits of a hybrid run, parts of which are exchanged in fp32: `4 + 32`."""
    axes, chain = [axis for axis in _axes(study) if axis != study.bits_axis.key], _chain(study)
    header = [
        axis_title(study.bits_axis.key),
        "bits",
        *map(axis_title, axes),
        *chain,
        "n",
        study.metric.title,
        study.difference_title,
        "diverged",
    ]
    rows = [
        [
            *_labels(group, axes),
            *(column[i] for column in chain.values()),
            str(len(group.values)),
            *_result(study, group),
            outcome(study, group),
        ]
        for i, group in enumerate(study.groups)
    ]
    return Shown(header, rows, 2 + len(axes) + len(chain))


def outcome(study: Study, group: Group) -> str:
    """Return how many runs diverged; in words, if none did and runs failed or did not learn."""
    if group.failed and not group.n_finished:
        return f"{group.failed} failed"
    counts = study.failures(group)
    if counts.without_result:
        return f"{counts.failed} of {counts.ended} failed"
    if group.values and not group.diverged and not study.learnt(group):
        return "did not learn"
    if group.gave_up and not group.diverged:
        return f"{group.gave_up} did not learn"
    return str(group.diverged)


def runs(study: Study) -> pd.DataFrame:
    """runs.csv: every finished run with the axes, its seed, how it ended, and all its metrics: what the means are
    made of, so that anyone can make them again."""
    done = finished(study.runs)
    names = [SWEEP, "run:name", "format", *_axes(study), SEED, USE, "run:status", "run:test_samples"]
    metrics = [name for name in done.columns if name.startswith("metric:")]
    names = [*dict.fromkeys(name for name in names if name in done.columns), *metrics]
    ours = {name: name.split(":", 1)[-1] for name in names if ":" in name}
    taken = {name: f"config.{name}" for name in names if name in ours.values()}
    return done[names].rename(columns=ours | taken)


def _chain(study: Study) -> dict[str, list[str]]:
    """The column that names the longest chain of rounded additions, where a record has it."""
    lengths = [group.longest_chain for group in study.groups]
    if not _known(lengths):
        return {}
    return {"chain": [f"{length:.0f}" if math.isfinite(length) else "-" for length in lengths]}


def full(study: Study) -> Shown:
    """For a page: as `brief`, and what is sent; what a worker keeps too, where that differs between rows."""
    table, sizes = brief(study), size_counts(study)
    rows = [[*row, *(_show_size(name, sizes[name][i]) for name in sizes)] for i, row in enumerate(table.rows)]
    return Shown([*table.header, *sizes], rows, table.n_labels)


def size_counts(study: Study) -> dict[str, list[float]]:
    """The columns of `full` that count bytes, and bits a parameter, by their heading: a number for each group."""
    sent = {"bytes sent a step": [group.wire_bytes for group in study.groups]}
    if _known(bits := _bits_a_parameter(study)):
        sent[_BITS_TITLE] = bits
    kept = {name: [group.figures[figure] for group in study.groups] for name, figure in KEPT.items()}
    computed = {
        _OPERATIONS_TITLE: [bit_operations(group) for group in study.groups],
        _AREA_TITLE: [transistors(group)[0] for group in study.groups],
    }
    return sent | {name: counts for name, counts in (kept | computed).items() if len(set(_known(counts))) > 1}


def _macs(group: Group) -> float:
    found = (group.products or {}).get("macs_per_step")
    return float(found) if isinstance(found, int | float) else math.nan


def _bits_a_parameter(study: Study) -> list[float]:
    return [group.bits_a_parameter for group in study.groups]


def _show_size(title: str, count: float) -> str:
    shows = {_BITS_TITLE: show_bits, _OPERATIONS_TITLE: show_count, _AREA_TITLE: show_transistors}
    return shows.get(title, show_bytes)(count)


def show_bits(bits: float) -> str:
    """`32`, `8.01`, `0.125`; bits a parameter a step."""
    return f"{bits:.3g}" if math.isfinite(bits) else "-"


def _known(counts: list[float]) -> list[float]:
    return [count for count in counts if math.isfinite(count)]


def column(axis: str) -> str:
    """An axis's name as a column of a csv; `config.bits` of a setting that is called as a column of ours."""
    return "sweep" if axis == SWEEP else f"config.{axis}" if axis in OWN else axis


def _numbers(study: Study, group: Group) -> dict:
    row = {FORMAT: group.keys[FORMAT], "bits": group.bits}
    row |= {column(axis): group.keys[axis] for axis in _axes(study)} | {"n": len(group.values)}
    mean, half_width = mean_interval(group.values, study.ci)
    name, half_width = study.metric.name, math.nan if is_zero(half_width) else half_width
    return row | {f"{name}_mean": mean, f"{name}_ci{study.ci:g}": half_width, "diverged": group.diverged}


def _judged(study: Study, group: Group) -> dict:
    judged = study.judged.get(group)
    if judged is None:
        return dict.fromkeys(_OF_VERDICT)
    found, counts = judged.judgement, judged.failures
    at_most = unseen_share(found.pairs, study.ci) if found.pairs and not counts.failed else math.nan
    return {
        "verdict": str(judged.verdict),
        "pairs": found.pairs,
        "anytime_low": found.low,
        "anytime_high": found.high,
        "seeds_needed": None if found.more is None else found.pairs + found.more.likely,
        "runs_failed": counts.failed,
        "at_most_fail": at_most,
    }


def _axes(study: Study) -> list[str]:
    return ["aps", "world_size", *study.axes, *(key for key in study.tuned.keys if key not in study.axes)]


def _labels(group: Group, axes: list[str]) -> list[str]:
    bits = group.bits
    size = "-" if bits is None else f"{bits} + 32" if group.hybrid else str(bits)
    return [group.name, size, *(axis_text(group.keys[a]) for a in axes)]


def _result(study: Study, group: Group) -> list[str]:
    gap = study.against_baseline(group)
    difference = study.metric.show_difference(gap.mean, gap.half_width) if gap else "-"
    if group in study.judged:
        difference += f" {MARKS[study.judged[group].verdict]}"
    return [study.metric.show_interval(study.interval(group)), difference]


def _whole_if_possible(bits: pd.Series) -> pd.Series:
    """Whole numbers, but where a format's scales take their share: 8.25."""
    numbers = bits.astype("Float64")
    return numbers if (numbers.dropna() % 1 != 0).any() else numbers.astype("Int64")
