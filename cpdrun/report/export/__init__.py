"""Export runs to experiment trackers. Each module exports to one tool with a function `write(study, folder) -> Path`.

A module needs the package of its tool, which the extra of cpdrun with the same name installs.
"""

import importlib
import math
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpdrun.record import RunDir, check_inside
from cpdrun.study import ReportUsageError
from cpdrun.study.axes import SWEEP
from cpdrun.study.collect import config_keys, finished
from cpdrun.study.study import Study


def names() -> list[str]:
    """Return the names of the tools."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def write(tool: str, study: Study, folder: Path) -> Path:
    """Export the finished runs for `tool` below `folder` and return the path to open.

    Args:
        tool: The name of the tool, which is one of `names()`.
        study: The study whose runs are exported.
        folder: The folder of the report.

    Raises:
        ReportUsageError: The package of the tool is not installed.
        NotRegularError: There is a link at the path to which the export would be written.
    """
    for name in (tool, f"{tool}.db"):
        check_inside(folder, folder / name)
    try:
        return importlib.import_module(f"{__name__}.{tool}").write(study, folder)
    except ImportError as error:
        raise ReportUsageError(f"export to {tool} needs {error.name}: pip install 'cpdrun[{tool}]'") from None


def finished_runs(study: Study) -> Iterator[tuple[str, RunDir, dict[str, Any]]]:
    """Yield the name of the sweep, the directory and the config of each finished run."""
    keys = config_keys(study.runs)
    for row in finished(study.runs).to_dict("records"):
        yield str(row[SWEEP]), RunDir(Path(row["run:path"])), {key: row[key] for key in keys}


def epochs(run: RunDir) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number of each epoch and its metrics that are finite numbers."""
    for row in run.rows():
        more = {"nonfinite_gradients": row.nonfinite_gradients, "train_seconds": row.train_seconds or None}
        figures = (row.metrics | more).items()
        yield row.epoch, {key: float(x) for key, x in figures if x is not None and math.isfinite(x)}
