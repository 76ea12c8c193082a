"""The curve of a run from its metrics.jsonl, counted in epochs, or in the steps or rows that a script logged."""

from collections.abc import Iterable

from cpdrun.record import EpochRow, LoggedRow, RunDir


def rows_of(run: RunDir) -> list[EpochRow]:
    """Return the rows of a run's curve.

    If a script logged no epochs, `epoch` holds the step, or the number of the row if the script logged no steps either.
    The result is empty if the file cannot be read.
    """
    try:
        if rows := list(run.rows()):
            return rows
        return [EpochRow(_place(row, n), metrics=row.metrics) for n, row in enumerate(run.logged(), 1)]
    except (OSError, RecursionError):  # there may be a folder in place of the file, or no right to read it
        return []


def unit_of(runs: Iterable[RunDir]) -> str:
    """Return the unit of the first run that has rows: "epoch", "step" or "row"; "epoch" if no run has rows."""
    for run in runs:
        try:
            if next(run.rows(), None) is not None:
                return "epoch"
            if (row := next(run.logged(), None)) is not None:
                return "row" if row.step is None else "step"
        except (OSError, RecursionError):
            continue
    return "epoch"


def _place(row: LoggedRow, number: int) -> int:
    return number if row.step is None else row.step
