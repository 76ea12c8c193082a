"""The data and plots of a report, for custom reports."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.config.errors import did_you_mean
from cpdrun.errors import UserError
from cpdrun.record import SweepDir, find_sweeps

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Names = str | Path | Sequence[str | Path]


def load(names: Names = (), *, results_dir: str | Path | None = None) -> "pd.DataFrame":
    """Return a DataFrame with one row per run of the given sweeps, finished or not.

    Every key of the configuration is a column, such as `format`, `aps`, `seed`, or `model.width`. Columns from the
    record have a prefix:

    - `metric:` metrics, such as `metric:test_accuracy` (float; NaN if a run does not have it);
    - `wire:` bytes that workers send;
    - `memory:` bytes that were kept in memory;
    - `run:` location and state: sweep, name, path, state, status, wall_seconds, and more;
    - `env:` environment: versions, device, and digests of code and data.

    docs/api.md lists all columns.

    Args:
        names: Names or folders of sweeps. By default, the latest sweep.
        results_dir: The results directory.

    Raises:
        NotFoundError: There is no such sweep.
    """
    from cpdrun.study.collect import collect

    return collect(_sweeps(names, results_dir))


def plot(names: Names, name: str, *, results_dir: str | Path | None = None, **question: Any) -> "Figure":
    """Return a plot of a report as a matplotlib figure, which need not be closed.

    Args:
        names: Names or folders of sweeps. An empty list means the latest sweep.
        name: The name of a plot in `cpdrun.plots()`, such as "accuracy_vs_bits".
        results_dir: The results directory.
        question: Options of the report: metric, ci, tolerance, and baseline, as for `cpdrun.report`, where `tolerance`
            is called `tol`.

    Raises:
        UserError: The plot is unknown, or the runs lack the data that it needs.
        NotFoundError: There is no such sweep.
        ReportError: No run has finished.
    """
    from cpdrun.report.page.pictures import draw_one, png
    from cpdrun.report.plots import NotDrawnError
    from cpdrun.study.reader import read_study

    if name not in (known := plots()):
        raise UserError(f"no plot {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}")
    unknown = [key for key in question if key not in ("metric", "ci", "tolerance", "baseline")]
    if unknown:
        raise UserError(f"cpdrun.plot takes metric, ci, tolerance and baseline, not {unknown[0]!r}")
    study = read_study(_sweeps(names, results_dir), **question)
    try:
        figure = draw_one(study, name)
    except NotDrawnError as reason:
        raise UserError(f"no {name}: {reason}") from None
    # Otherwise, notebooks display only figures that are registered with pyplot.
    figure._repr_png_ = partial(png, figure)  # type: ignore[attr-defined]
    return figure


def plots() -> list[str]:
    """Return the names of the plots that `plot` can draw."""
    from cpdrun.report.plots import names

    return names()


def _sweeps(names: Names, results_dir: str | Path | None) -> list[SweepDir]:
    named = [names] if isinstance(names, str | Path) else list(names)
    folder = [] if results_dir is None else [f"results_dir={results_dir}"]
    return find_sweeps([*map(str, named), *folder])
