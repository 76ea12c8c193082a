"""Export runs to experiment trackers.

Each module exports to one tool, with a function `write(study, folder) -> Path`. It needs the tool's package, which is
installed by the extra of that name: `pip install 'cpdrun[mlflow]'`.
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
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def write(tool: str, study: Study, folder: Path) -> Path:
    """Export the finished runs to one of `names()`, and return the path to open with it.

    Raises:
        ReportUsageError: The tool's package is not installed.
        NotRegularError: The export would be written through a link.
    """
    for name in (tool, f"{tool}.db"):
        check_inside(folder, folder / name)
    try:
        return importlib.import_module(f"{__name__}.{tool}").write(study, folder)
    except ImportError as error:
        raise ReportUsageError(f"export to {tool} needs {error.name}: pip install 'cpdrun[{tool}]'") from None


def finished_runs(study: Study) -> Iterator[tuple[str, RunDir, dict[str, Any]]]:
    """Yield (sweep name, run directory, config) for each finished run."""
    keys = config_keys(study.runs)
    for row in finished(study.runs).to_dict("records"):
        yield str(row[SWEEP]), RunDir(Path(row["run:path"])), {key: row[key] for key in keys}


def epochs(run: RunDir) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number and the finite metrics of each epoch."""
    for row in run.rows():
        more = {"nonfinite_gradients": row.nonfinite_gradients, "train_seconds": row.train_seconds or None}
        figures = (row.metrics | more).items()
        yield row.epoch, {key: float(x) for key, x in figures if x is not None and math.isfinite(x)}
