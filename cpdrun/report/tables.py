"""The tables of means, as numbers and as shown; one row a combination of axes, its seeds averaged."""

import math
from dataclasses import dataclass

import pandas as pd

from cpdrun.report.cost.axes import bit_operations, show_bytes, show_count, show_transistors, transistors
from cpdrun.stats.evidence import Judgement, Verdict
from cpdrun.stats.moments import deviation
from cpdrun.study.axes.titles import SWEEP, axis_text, axis_title
from cpdrun.study.collect import FORMAT, SEED, finished
from cpdrun.study.groups.group import Group
from cpdrun.study.groups.tuned import USE
from cpdrun.study.groups.verdicts import MARKS
from cpdrun.study.result_text import gap_text, own_interval_text
from cpdrun.study.study import Study

# what a worker keeps in memory, by its heading
KEPT = {"model": "model_bytes", "optimizer": "optimizer_bytes", "activations": "activation_bytes"}

_BITS_TITLE = "bits a parameter a step"
_OPERATIONS_TITLE, _AREA_TITLE = "bit operations a step", "transistors a unit"
OPERATIONS, MACS, AREA = "bit_operations_per_step", "macs_per_step", "transistors_per_mac"
BITS_A_PARAMETER = "bits_per_parameter_per_step"

# columns that table.csv and details.csv have in addition to those named after the metric
_OF_VERDICT = (
    "verdict",
    "pairs",
    "vs_baseline",
    "vs_baseline_low",
    "vs_baseline_high",
    "own_low",
    "own_high",
    "more_pairs",
    "more_pairs_low",
    "more_pairs_high",
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
    """table.csv: format, bits, aps, world_size, the other axes, n, METRIC_mean, METRIC_sd, diverged, and
    bits_per_parameter_per_step where a record has it.

    Means and standard deviations over the seeds are in the metric's own unit (a fraction 0..1 for an accuracy). `n`
    counts the seeds; `diverged` counts the runs that diverged, whose measured values are in the mean.
    """
    table = pd.DataFrame([_numbers(study, group) for group in study.groups])
    table["bits"] = _whole_if_possible(table["bits"])
    if _known(sent := _bits_a_parameter(study)):
        table[BITS_A_PARAMETER] = sent
    return table


def details(study: Study) -> pd.DataFrame:
    """Return the columns of `frame`, and everything else that is known about each group.

    `baseline` says what a row is compared with; it is empty for the baseline itself and if there is none. `vs_baseline`
    is the mean gap over `pairs`, positive if the format is better, whichever way the metric points. Its interval goes
    from `vs_baseline_low` to `vs_baseline_high`; `own_low` and `own_high` are the ends of the interval from the group's
    own pairs alone. Both are valid after every number of pairs, and an end is empty while the pairs leave it open.
    `verdict` belongs to the same evidence, and `more_pairs` is about how many further pairs would settle an open one,
    with a range. `runs_failed` counts the runs that failed, diverged or did not learn; at most a share of
    `at_most_fail` fails, with the confidence of the report. The rest are counts: the longest chain of rounded
    additions, bytes on the wire and in memory, seconds, and where a record has them a step's multiply-accumulates, its
    bit operations, and the mean number of transistors of a multiply-accumulate unit (cost/axes.py).
    """
    rows = []
    for group in study.groups:
        rows.append(
            _numbers(study, group)
            | {
                "learnt": study.learnt(group) if group.values else None,
                "gave_up": group.gave_up,
                "baseline": study.baseline_name if group in study.judged else "",
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
    """Return the table for a terminal of 80 columns: as `means`, with some columns left out or shortened.

    APS and workers are left out if they are the same in every row, and `n`, because `failed` says how many runs ended.
    The interval of the gap on its own spread is only a half-width. Words
    do not break within an interval.
    """
    table = _means(study, is_short=True)
    same = {
        i
        for i, name in enumerate(table.header)
        if name == "n" or (name in ("APS", "workers") and len({row[i] for row in table.rows}) == 1)
    }

    def kept(cells: list[str]) -> list[str]:
        return [cell for i, cell in enumerate(cells) if i not in same]

    left_out = sum(i < table.n_labels for i in same)
    return Shown(kept(table.header), [kept(row) for row in table.rows], table.n_labels - left_out)


def means(study: Study) -> Shown:
    """Return a row for each group: its mean, its gap to the baseline with both intervals, failures and verdict.

    The bits of a hybrid run, parts of which are exchanged in fp32, are shown as `4 + 32`. The interval on the group's
    own spread is left out if it is the same in every row.
    """
    return _means(study, is_short=False)


def _means(study: Study, is_short: bool) -> Shown:
    axes, chain = [axis for axis in _axes(study) if axis != study.bits_axis.key], _chain(study)
    labels = [axis_title(study.bits_axis.key), "bits", *map(axis_title, axes), *chain]
    own = ["own ±" if is_short else "own spread"] if has_own_spread(study) else []
    header = [*labels, "n", study.metric.title, study.difference_title, *own, "failed", "verdict"]
    rows = []
    for i, group in enumerate(study.groups):
        gap = study.against_baseline(group)
        shown = "-" if gap is None else gap_text(study.metric, gap).replace(study.metric.points, "", 1)
        labels_of_row = [*_labels(group, axes), *(column[i] for column in chain.values())]
        figures = [str(len(group.values)), study.metric.show(group.mean), shown]
        figures += [_own_spread(study, gap, is_short)] if own else []
        verdict = _verdict(study, group)
        if is_short:
            figures[2], verdict = figures[2].replace(", ", ","), verdict.split()[-1]
        rows.append([*labels_of_row, *figures, _failed(study, group), verdict])
    return Shown(header, rows, len(labels))


def has_own_spread(study: Study) -> bool:
    """Return whether the interval on a group's own spread differs from the printed one in any row."""
    found = [judged.judgement for judged in study.judged.values()]
    return any((each.own_low, each.own_high) != (each.low, each.high) for each in found)


def _own_spread(study: Study, gap: Judgement | None, is_short: bool) -> str:
    if gap is None:
        return "-"
    if not is_short:
        return own_interval_text(study.metric, gap)
    half = (gap.own_high - gap.own_low) / 2
    return study.metric.show_gap(half).removeprefix("+") if math.isfinite(half) else "-"


def _failed(study: Study, group: Group) -> str:
    """Return `1 of 3`, the runs that failed, diverged or gave up, or `did not learn` if the mean is only a guess."""
    if group.values and not group.diverged and not study.failures(group).failed and not study.learnt(group):
        return "did not learn"
    failed, ended = count_failed(study, group), group.n_finished + group.failed
    return f"{failed} of {ended}" if ended else "-"


def count_failed(study: Study, group: Group) -> int:
    """Return how many runs failed, diverged or did not learn; all that ended well if the mean is only a guess."""
    if group in study.judged and study.failures(group).failed:
        return study.failures(group).failed
    failed = group.failed + group.diverged + group.gave_up
    return failed or (group.n_finished if group.values and not study.learnt(group) else 0)


def _verdict(study: Study, group: Group) -> str:
    if group.is_baseline:
        return "baseline"
    judged = study.judged.get(group)
    return "-" if judged is None else f"{MARKS[judged.verdict]} {judged.verdict}"


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
    """Return the table for a page: as `means`, what is sent, and what a worker keeps if that differs between rows."""
    table, sizes = means(study), size_counts(study)
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
    values, name = group.values, study.metric.name
    spread = deviation(values) if len(values) > 1 else None
    return row | {f"{name}_mean": group.mean, f"{name}_sd": spread, "diverged": group.diverged}


def _judged(study: Study, group: Group) -> dict:
    judged = study.judged.get(group)
    if judged is None:
        return dict.fromkeys(_OF_VERDICT)
    found, failures = judged.judgement, judged.failures
    more = found.more if judged.verdict is Verdict.OPEN and found.more is not None else None
    values = (
        str(judged.verdict),
        found.pairs,
        *(end if math.isfinite(end) else None for end in (found.mean, found.low, found.high)),
        *(end if math.isfinite(end) else None for end in (found.own_low, found.own_high)),
        *((None, None, None) if more is None else (more.likely, more.low, more.high)),
        failures.failed,
        failures.at_most(study.ci),
    )
    return dict(zip(_OF_VERDICT, values, strict=True))


def _axes(study: Study) -> list[str]:
    return ["aps", "world_size", *study.axes, *(key for key in study.tuned.keys if key not in study.axes)]


def _labels(group: Group, axes: list[str]) -> list[str]:
    bits = group.bits
    size = "-" if bits is None else f"{bits} + 32" if group.hybrid else str(bits)
    return [group.name, size, *(axis_text(group.keys[a]) for a in axes)]


def _whole_if_possible(bits: pd.Series) -> pd.Series:
    """Whole numbers, but where a format's scales take their share: 8.25."""
    numbers = bits.astype("Float64")
    return numbers if (numbers.dropna() % 1 != 0).any() else numbers.astype("Int64")
