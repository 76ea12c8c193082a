"""The runs in the files of tools that people have, one tool a module: `write(study, folder) -> Path`.

Each needs its tool's package, an extra of ours by the same name.
"""

import importlib
import math
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.record import RunDir, read_json_lines
from cpdrun.report.errors import ReportUsageError

if TYPE_CHECKING:
    from cpdrun.report.read.study import Study


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def write(tool: str, study: "Study", folder: Path) -> Path:
    """Export the finished runs for `tool` below `folder`; gives the path to open.

    Raises ReportUsageError where its package is not installed.
    """
    try:
        return importlib.import_module(f"{__name__}.{tool}").write(study, folder)
    except ImportError as error:
        raise ReportUsageError(f"export to {tool} needs {error.name}: pip install 'cpdrun[{tool}]'") from None


def epochs(run: RunDir) -> Iterator[tuple[int, dict[str, float]]]:
    """Each epoch's number and its metrics, those that are finite numbers."""
    for row in read_json_lines(run.metrics):
        if isinstance(row, dict) and isinstance(row.get("epoch"), int):
            yield row["epoch"], {key: float(value) for key, value in row.items() if _is_number(key, value)}


def _is_number(key: str, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return key != "epoch" and is_number and math.isfinite(value)
