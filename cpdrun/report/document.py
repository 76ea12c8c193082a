"""The documents of `cpdrun report --json` and `cpdrun report --plots --json`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdrun.stats.evidence import Verdict


@dataclass
class VerdictRow:
    """The answer for the candidates of one facet that share a way of scaling.

    The values after `bits` are null if no candidate is compared. Differences are in the metric's own unit.

    Attributes:
        facet: The values of the axes other than the format and its scaling.
        scaling: How the gradients are scaled.
        verdict: The verdict.
        candidate: The certified format with the fewest bits, or else the one that is most likely to be certified.
        bits: The bits per value of the candidate.
        pairs: The number of pairs.
        mean: The mean difference to the baseline. Positive is better.
        low: The lower end of its interval.
        high: The upper end of its interval.
        own_low: The lower end of the interval from the candidate's own pairs alone.
        own_high: The upper end of this interval.
        more: About how many further pairs settle an open question, or null if it cannot be said.
        more_range: The range that holds for 80 % of questions.
        runs_ended: The number of runs that have ended.
        runs_failed: The number of runs that failed.
        at_most_fail: The share of runs that may fail although none did, or null if some failed.
        is_identical: Whether its runs equal the baseline's bit for bit, so that they are no evidence.
    """

    facet: str
    scaling: str
    verdict: Verdict
    candidate: str | None
    bits: float | None
    pairs: int | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    own_low: float | None = None
    own_high: float | None = None
    more: int | None = None
    more_range: list[int] | None = None
    runs_ended: int | None = None
    runs_failed: int | None = None
    at_most_fail: float | None = None
    is_identical: bool | None = None


@dataclass
class ReportDocument:
    """The results of a report, and the files that it wrote.

    Attributes:
        verdicts: The answer of each facet and scaling.
        next_command: The search that adds pairs to open questions.
        sentences: The answer.
        notes: What is missing, failed, mixed or left out.
        table: A row for each group of runs that differ only in their seed.
        fronts: The Pareto front and its knee for each cost that varies within a facet.
        crossover: The predicted step times. Empty if they cannot be predicted.
        files: The paths of the files.
        layout: The rows of the table with the requested axes. Empty if none was requested.
    """

    verdicts: list[VerdictRow]
    next_command: str | None
    sentences: list[str]
    notes: list[str]
    table: list[dict[str, Any]]
    fronts: list[dict[str, Any]]
    crossover: list[dict[str, Any]]
    files: list[Path]
    layout: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class PlotRow:
    """A plot that a report may have.

    Attributes:
        name: The name of the plot and of its files.
        title: The heading.
        needs: What the runs must have for the plot to be drawn.
    """

    name: str
    title: str
    needs: str


@dataclass
class PlotsDocument:
    """All plots that a report may have.

    Attributes:
        plots: The plots by name.
    """

    plots: list[PlotRow]
