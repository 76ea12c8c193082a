"""Show results as sentences, tables, plots and an HTML page.

pandas and matplotlib are imported only when `write_report` is first used, so importing this package is fast.
"""

from typing import TYPE_CHECKING, Any

from cpdrun.shell.callable_package import is_function_too

if TYPE_CHECKING:
    from cpdrun.report.content import ReportOptions
    from cpdrun.report.write import Report, write_report
    from cpdrun.study import ReportError, ReportUsageError

__all__ = ["Report", "ReportError", "ReportOptions", "ReportUsageError", "write_report"]

is_function_too(__name__)


def __getattr__(name: str) -> Any:
    if name in ("Report", "ReportOptions", "write_report"):
        from cpdrun.report import write

        return getattr(write, name)
    if name in ("ReportError", "ReportUsageError"):
        from cpdrun import study

        return getattr(study, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
