"""Runs as a DataFrame and plots as figures: what a report is made of, for those who make their own."""

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
    """All runs of sweeps, finished or not, one a row.

    `names`: of sweeps, or their folders; without any the latest. Columns: every key of the configuration under its own
    name (`format`, `aps`, `seed`, `model.width`), and what the record adds under a prefix: `metric:test_accuracy` and
    the other metrics (float, NaN where there is none), `wire:` bytes that workers send, `memory:` bytes that were held,
    `run:` where it lies and how it stands (`run:sweep`, `run:name`, `run:path`, `run:state`, `run:status`,
    `run:wall_seconds`, ...), `env:` versions. docs/api.md has the list. Raises NotFoundError.
    """
    from cpdrun.study.collect import collect

    return collect(_sweeps(names, results_dir))


def plot(names: Names, name: str, *, results_dir: str | Path | None = None, **question: Any) -> "Figure":
    """One plot of a report, as a matplotlib figure of its own (no pyplot: nothing to close).

    `names`: as of `load`. `name`: one of `cpdrun.plots()`, such as accuracy_vs_bits. `question`: metric, ci, tolerance
    and baseline, as of `cpdrun.report`. Raises UserError for another name, and where the runs do not hold what the
    picture needs; NotFoundError; ReportError where no run has finished.
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
    # notebooks show figures of pyplot by themselves, and no others
    figure._repr_png_ = partial(png, figure)  # type: ignore[attr-defined]
    return figure


def plots() -> list[str]:
    """The names of the plots that `plot` draws."""
    from cpdrun.report.plots import names

    return names()


def _sweeps(names: Names, results_dir: str | Path | None) -> list[SweepDir]:
    named = [names] if isinstance(names, str | Path) else list(names)
    folder = [] if results_dir is None else [f"results_dir={results_dir}"]
    return find_sweeps([*map(str, named), *folder])
