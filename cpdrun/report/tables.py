"""Make the tables of means as numbers and as text.

Each row is a group: runs that differ only in their seed.
"""

import math
from dataclasses import dataclass

import pandas as pd

from cpdrun.costmodel.costs import bit_operations, coverage, not_counted, transistors
from cpdrun.report.cost import show_bytes, show_count, show_transistors
from cpdrun.report.result_text import gap_text, has_own_interval, own_interval_text, verdict_text
from cpdrun.stats.evidence import Judgment, Verdict
from cpdrun.stats.means import deviation
from cpdrun.study.axes import SWEEP, axis_text, axis_title
from cpdrun.study.collect import FORMAT, SEED, finished
from cpdrun.study.group import Group
from cpdrun.study.search_record import USE
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS

# The names in `Group.figures` of what a worker keeps in memory, keyed by column heading.
KEPT = {"model": "model_bytes", "optimizer": "optimizer_bytes", "activations": "activation_bytes"}

OWN_SPREAD, MEAN_BITS = "own spread", "mean bits"
_BITS_TITLE = "bits per parameter and step"
_OPERATIONS_TITLE, _AREA_TITLE = "bit operations a step", "transistors a unit"
OPERATIONS, MACS, AREA = "bit_operations_per_step", "macs_per_step", "transistors_per_mac"
BITS_A_PARAMETER = "bits_per_parameter_per_step"

# `show_means` adds at most `_MORE_DECIMALS` decimals to a share. A cost has at most `_MOST_SIZE_DIGITS` significant
# digits.
_MORE_DECIMALS = 2
_MOST_SIZE_DIGITS = 6

# The columns of details.csv that describe a verdict.
_OF_VERDICT = (
    "verdict", "is_identical", "pairs", "vs_baseline", "vs_baseline_low", "vs_baseline_high", "own_low", "own_high",
    "more_pairs", "more_pairs_low", "more_pairs_high", "runs_failed", "at_most_fail",
)  # fmt: skip
# The names of the columns that are not axes. An axis that has one of these names gets the column `config.NAME`.
OWN = {
    "sweep", "bits", "n", "diverged", "learnt", "gave_up", "baseline", *_OF_VERDICT, "hybrid", "test_samples",
    "longest_chain", "bytes_per_step", "parameters", "coverage", BITS_A_PARAMETER, MACS, OPERATIONS, AREA,
    "train_seconds", *KEPT.values(),
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A table as plain text, which can be written in any markup.

    Attributes:
        header: The headings.
        rows: The cells of each row.
        n_labels: The number of leading columns that identify a row.
    """

    header: list[str]
    rows: list[list[str]]
    n_labels: int = 1


def frame(study: Study) -> pd.DataFrame:
    """Return table.csv, with one row per group.

    The columns are format, bits, aps, world_size, the other axes, n, METRIC_mean, METRIC_sd and diverged. The bits of
    a recipe are its mean operand bits (`Group.mean_operand_bits`). If its products were not counted, they are its
    planned bits (`cpdrun.study.choices`). bits_per_parameter_per_step is added if any run recorded it.

    `format` holds what is compared, such as the recipe in a sweep of recipes. The gradients' format is then in
    `config.format` if it varies. Means and standard deviations over seeds are in the metric's own unit (0 to 1 for
    accuracy). `n` counts seeds. `diverged` counts diverged runs, whose values still enter the mean if they were
    measured.
    """
    table = pd.DataFrame([_numbers(study, group) for group in study.groups])
    table["bits"] = _whole_if_possible(table["bits"])
    if _known(sent := _bits_a_parameter(study)):
        table[BITS_A_PARAMETER] = sent
    return table


def details(study: Study) -> pd.DataFrame:
    """Return details.csv: the columns of `frame` and everything else known about a group.

    baseline: The group that the row is compared with; empty for the baseline itself.

    vs_baseline: The mean gap over `pairs` pairs. Positive is better, also for metrics whose lower values are better.
    The interval from `vs_baseline_low` to `vs_baseline_high` belongs to it. The interval from `own_low` to `own_high`
    uses only the group's own pairs. Both are valid after any number of pairs, and an end that the pairs do not
    determine is empty.

    verdict: The verdict from the same evidence. If `is_identical` is true, the runs equal the baseline's runs bit for
    bit. That is no evidence, so texts call a certified group "not tested".

    more_pairs: The expected number of further pairs that decide an open verdict, with an 80% range from
    `more_pairs_low` to `more_pairs_high`.

    runs_failed: The runs that failed, diverged or did not learn. `at_most_fail` is the upper confidence limit of the
    failure rate as a share.

    coverage: The share of the multiply-accumulates of a step that have a rounded input or sum.

    The other columns are the longest chain of rounded additions, bytes sent and kept, seconds, and the counts of
    `cpdrun.costmodel.costs`.
    """
    rows = []
    for group in study.groups:
        rows.append(
            _numbers(study, group)
            | {
                "learnt": study.learnt(group) if group.values else None,
                "gave_up": len(group.gave_up_seeds),
                "baseline": study.baseline_name if group in study.judged else "",
                **_judged(study, group),
                "hybrid": group.hybrid,
                "test_samples": group.figures["test_samples"],
                "longest_chain": group.longest_chain,
                "bytes_per_step": group.wire_bytes,
                "parameters": group.figures["parameters"],
                BITS_A_PARAMETER: group.bits_a_parameter,
                "coverage": coverage(group),
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
    """Return the table of `means`, shortened for a terminal of 80 columns.

    `n` is dropped because `failed` shows the number of runs. `APS` and `workers` are dropped if they are constant. The
    interval from a group's own spread is reduced to its half-width.
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
    """Return the table of means, gaps, failed runs and verdicts, with one row per group.

    Hybrid runs exchange parts of the model in fp32, so their bits look like "4 + 32". The column of intervals from a
    group's own pairs is dropped if it repeats the gap's intervals.
    """
    return _means(study, is_short=False)


def _means(study: Study, is_short: bool) -> Shown:
    axes = [axis for axis in _axes(study) if axis != study.bits_axis.key]
    chain = _coverage(study) | _chain(study)
    bits = "bits" if all(group.mean_operand_bits is None for group in study.groups) else MEAN_BITS
    labels = [axis_title(study.bits_axis.key), bits, *map(axis_title, axes), *chain]
    own = ["own ±" if is_short else OWN_SPREAD] if has_own_spread(study) else []
    unit = f", {study.metric.points.strip()}" if study.metric.points else ""
    sign = "" if study.metric.higher_is_better else ", +: better"
    difference = f"against {study.baseline_name}{unit}{sign}"
    header = [*labels, "n", study.metric.title, difference, *own, "failed", "verdict"]
    rows = []
    mean_texts = show_means(study)
    for i, group in enumerate(study.groups):
        gap = study.against_baseline(group)
        shown = "-" if gap is None else gap_text(study.metric, gap).replace(study.metric.points, "", 1)
        labels_of_row = [
            *_labels(group, axes, has_means=bits == MEAN_BITS),
            *(column[i] for column in chain.values()),
        ]
        figures = [str(len(group.values)), mean_texts[i], shown]
        figures += [_own_spread(study, gap, is_short)] if own else []
        verdict = _verdict(study, group)
        if is_short:
            # A terminal would break a line at the space within an interval.
            figures[2], verdict = figures[2].replace(", ", ","), verdict.split(" ", 1)[-1]
        rows.append([*labels_of_row, *figures, _failed(study, group), verdict])
    return Shown(header, rows, len(labels))


def show_means(study: Study) -> list[str]:
    """Format the mean of each group.

    All means have the same number of decimals: as many as distinguish each group from its baseline, up to a limit.
    """
    scale, digits = study.metric.scale, study.metric.digits
    most = digits + (_MORE_DECIMALS if study.metric.is_fraction else 0)
    pairs = [(g.mean, b.mean) for g in study.groups if g.values and (b := study.baselines.get(g)) is not None]
    apart = [(ours * scale, theirs * scale) for ours, theirs in pairs if not math.isclose(ours, theirs)]
    while digits < most and any(f"{ours:.{digits}f}" == f"{theirs:.{digits}f}" for ours, theirs in apart):
        digits += 1
    return [f"{g.mean * scale:.{digits}f}" if math.isfinite(g.mean) else "-" for g in study.groups]


def has_own_spread(study: Study) -> bool:
    """Return True if any group's own interval differs from that of its gap."""
    return any(has_own_interval(judged.judgment) for judged in study.judged.values())


def _own_spread(study: Study, gap: Judgment | None, is_short: bool) -> str:
    if gap is None:
        return "-"
    if not is_short:
        return own_interval_text(study.metric, gap)
    half = (gap.own_high - gap.own_low) / 2
    return study.metric.show_gap(half).removeprefix("+") if math.isfinite(half) else "-"


def _failed(study: Study, group: Group) -> str:
    """Return how many of the ended runs failed, such as "1 of 3".

    Return "did not learn" if no run failed but the mean is no better than a guess.
    """
    if group.values and not group.diverged and not study.failures(group).failed and not study.learnt(group):
        return "did not learn"
    failed, ended = count_failed(study, group), group.n_finished + group.failed
    return f"{failed} of {ended}" if ended else "-"


def count_failed(study: Study, group: Group) -> int:
    """Count the runs that failed, diverged or did not learn.

    If the mean of a group is no better than a guess, all of its finished runs count.
    """
    if group in study.judged and study.failures(group).failed:
        return study.failures(group).failed
    failed = group.failed + group.diverged + len(group.gave_up_seeds)
    return failed or (group.n_finished if group.values and not study.learnt(group) else 0)


def _verdict(study: Study, group: Group) -> str:
    if group.is_baseline:
        return "baseline"
    judged = study.judged.get(group)
    return "-" if judged is None else f"{MARKS[judged.kind]} {verdict_text(judged)}"


def runs(study: Study) -> pd.DataFrame:
    """Return runs.csv, with one row per finished run.

    The columns are the sweep, the run's name, the axes, the seed, the status and all metrics. The means can be
    recomputed from them.
    """
    done = finished(study.runs)
    done = done.assign(**{FORMAT: done[study.bits_axis.key], f"config.{FORMAT}": done[FORMAT]})
    axes = [f"config.{FORMAT}" if axis == FORMAT else axis for axis in _axes(study)]
    names = [SWEEP, "run:name", FORMAT, *axes, SEED, USE, "run:status", "run:test_samples"]
    metrics = [name for name in done.columns if name.startswith("metric:")]
    names = [*dict.fromkeys(name for name in names if name in done.columns), *metrics]
    ours = {name: name.split(":", 1)[-1] for name in names if ":" in name}
    taken = {name: f"config.{name}" for name in names if name in ours.values()}
    return done[names].rename(columns=ours | taken)


def _chain(study: Study) -> dict[str, list[str]]:
    """Return {"chain": cells}, the longest chains of rounded additions; {} if unrecorded."""
    lengths = [group.longest_chain for group in study.groups]
    if not _known(lengths):
        return {}
    return {"chain": [f"{length:.0f}" if math.isfinite(length) else "-" for length in lengths]}


def _coverage(study: Study) -> dict[str, list[str]]:
    """Return {"coverage": cells}, the shares of rounded multiply-accumulates; {} if no products are rounded.

    Shares are rounded down. Operators that could not be counted may be in float32, so the share is then a limit.
    """
    if not any(coverage(group) > 0 for group in study.groups) and not not_counted(study.groups):
        return {}
    return {"coverage": [_share_text(group) for group in study.groups]}


def _share_text(group: Group) -> str:
    share, products = coverage(group), group.products or {}
    if math.isfinite(share):
        return f"{'≤' if products.get('uncounted') else ''}{math.floor(100 * share)}%"
    return "not counted" if products.get("problem") else "-"


def full(study: Study) -> Shown:
    """Return the table for the page: `means` followed by the columns of `size_counts`."""
    table, sizes = means(study), size_counts(study)
    columns = [_size_texts(name, counts) for name, counts in sizes.items()]
    rows = [[*row, *(column[i] for column in columns)] for i, row in enumerate(table.rows)]
    return Shown([*table.header, *sizes], rows, table.n_labels)


def size_counts(study: Study) -> dict[str, list[float]]:
    """Return the cost columns of `full` as {heading: one number per group}.

    Bytes sent are always included, and bits sent per parameter if recorded. Bytes kept, bit operations and transistors
    are included if they differ between groups.
    """
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
    found = (group.products or {}).get(MACS)
    return float(found) if isinstance(found, int | float) else math.nan


def _bits_a_parameter(study: Study) -> list[float]:
    return [group.bits_a_parameter for group in study.groups]


def _size_texts(title: str, counts: list[float]) -> list[str]:
    """Format a cost column with enough digits to distinguish different costs, up to a limit."""
    shows = {_BITS_TITLE: show_bits, _OPERATIONS_TITLE: show_count}
    if title == _AREA_TITLE:
        return [show_transistors(count) for count in counts]
    for digits in range(3, _MOST_SIZE_DIGITS + 1):
        texts = [shows.get(title, show_bytes)(count, digits) for count in counts]
        if len(set(texts)) == len(set(map(str, counts))):
            break
    return texts


def show_bits(bits: float, digits: int = 3) -> str:
    """Format bits per parameter and step, such as "8.01". NaN and inf become "-"."""
    return f"{bits:.{digits}g}" if math.isfinite(bits) else "-"


def _known(counts: list[float]) -> list[float]:
    return [count for count in counts if math.isfinite(count)]


def column(axis: str) -> str:
    """Return the CSV column of an axis: its key, or `config.KEY` if the name is taken."""
    return "sweep" if axis == SWEEP else f"config.{axis}" if axis in OWN else axis


def _numbers(study: Study, group: Group) -> dict:
    """Return a group's row of table.csv as {column: value}."""
    row = {FORMAT: group.keys[FORMAT] if study.bits_axis.is_of_gradients else group.name, "bits": group.bits}
    axes = {"config.format" if axis == FORMAT else column(axis): group.keys[axis] for axis in _axes(study)}
    row |= axes | {"n": len(group.values)}
    values, name = group.values, study.metric.name
    spread = deviation(values) if len(values) > 1 else None
    return row | {f"{name}_mean": group.mean, f"{name}_sd": spread, "diverged": group.diverged}


def _judged(study: Study, group: Group) -> dict:
    """Return a group's values of the verdict columns; None for unknown values."""
    judged = study.judged.get(group)
    if judged is None:
        return dict.fromkeys(_OF_VERDICT)
    found, failures = judged.judgment, judged.failures
    more = found.more if judged.verdict is Verdict.OPEN and found.more is not None else None
    values = (
        str(judged.verdict),
        judged.is_identical,
        found.pairs,
        *(end if math.isfinite(end) else None for end in (found.mean, found.low, found.high)),
        *(end if math.isfinite(end) else None for end in (found.own_low, found.own_high)),
        *((None, None, None) if more is None else (more.likely, more.low, more.high)),
        failures.failed,
        failures.at_most(study.ci),
    )
    return dict(zip(_OF_VERDICT, values, strict=True))


def _axes(study: Study) -> list[str]:
    """Return the axes that identify a row in addition to what is compared."""
    held = (
        not study.bits_axis.is_of_gradients and len({str(group.keys[FORMAT]) for group in study.groups}) > 1
    )
    tuned = [key for key in study.tuned.keys if key not in study.axes]
    return [*([FORMAT] if held else []), "aps", "world_size", *study.axes, *tuned]


def _labels(group: Group, axes: list[str], *, has_means: bool = False) -> list[str]:
    """Return the cells that identify a group: name, bits and values on the axes.

    Args:
        group: The group.
        axes: The axes whose values are returned.
        has_means: Whether the bits column shows mean bits. If so, the bits of a candidate whose products were not
            counted are marked as planned.
    """
    bits, mean = group.bits, group.mean_operand_bits
    size = "-" if bits is None else f"{bits} + 32" if group.hybrid else str(bits)
    if mean is not None:
        size = f"{mean:.3g}"
    elif has_means and not group.is_baseline:
        size = f"{size} planned"
    return [group.name, size, *(axis_text(group.keys[a]) for a in axes)]


def _whole_if_possible(bits: pd.Series) -> pd.Series:
    """Convert bits to integers, unless a format with scales has a fraction such as 8.25."""
    numbers = bits.astype("Float64")
    return numbers if (numbers.dropna() % 1 != 0).any() else numbers.astype("Int64")
