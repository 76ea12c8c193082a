"""The curve of a run, as its metrics.jsonl has it: by epochs, or as a script counted, by its steps or its rows."""

from collections.abc import Iterable

from cpdrun.record import EpochRow, LoggedRow, RunDir


def rows_of(run: RunDir) -> list[EpochRow]:
    """Of a script that logged no epochs, `epoch` is the step, or the number of the row where it logged none either."""
    try:
        if rows := list(run.rows()):
            return rows
        return [EpochRow(_place(row, n), metrics=row.metrics) for n, row in enumerate(run.logged(), 1)]
    except (OSError, RecursionError):  # a folder in its place, or no right to read it: curves do without it
        return []


def unit_of(runs: Iterable[RunDir]) -> str:
    """epoch, step or row, of the first run that has rows."""
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
