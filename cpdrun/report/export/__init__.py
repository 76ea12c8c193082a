"""The runs in the files of tools that people have, one tool a module: `write(study, folder) -> Path`.

Each needs its tool's package, an extra of ours by the same name.
"""

import importlib
import math
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cpdrun.record import RunDir, check_inside
from cpdrun.study.errors import ReportUsageError

if TYPE_CHECKING:
    from cpdrun.study.study import Study


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def write(tool: str, study: "Study", folder: Path) -> Path:
    """Export the finished runs for `tool` below `folder` and return the path to open.

    Raises:
        ReportUsageError: the tool's package is not installed.
        NotRegularError: a link lies where the export would be written.
    """
    for name in (tool, f"{tool}.db"):
        check_inside(folder, folder / name)
    try:
        return importlib.import_module(f"{__name__}.{tool}").write(study, folder)
    except ImportError as error:
        raise ReportUsageError(f"export to {tool} needs {error.name}: pip install 'cpdrun[{tool}]'") from None


def epochs(run: RunDir) -> Iterator[tuple[int, dict[str, float]]]:
    """Each epoch's number and its metrics, those that are finite numbers."""
    for row in run.rows():
        more = {"nonfinite_gradients": row.nonfinite_gradients, "train_seconds": row.train_seconds or None}
        figures = (row.metrics | more).items()
        yield row.epoch, {key: float(x) for key, x in figures if x is not None and math.isfinite(x)}
