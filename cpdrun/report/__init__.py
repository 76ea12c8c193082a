"""Report how many bits are needed and how sure the answer is, with tables and pictures.

Importing this package imports pandas and matplotlib, so import it only where a report is written.
"""

from cpdrun.report.write import Report, write_report
from cpdrun.shell.called import is_function_too
from cpdrun.study.errors import ReportError, ReportUsageError

__all__ = ["Report", "ReportError", "ReportUsageError", "write_report"]

is_function_too(__name__)
