"""The document of `cpdrun report --json`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.study.answers import ChainVerdict


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
    """

    verdicts: list[ChainVerdict]
    next_command: str | None
    sentences: list[str]
    notes: list[str]
    table: list[dict[str, Any]]
    fronts: list[dict[str, Any]]
    crossover: list[dict[str, Any]]
    files: list[Path]
