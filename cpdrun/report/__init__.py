"""The report: how many bits are needed, how sure that is, and the table and pictures that show it.

Importing this package imports pandas and matplotlib: import it where a report is asked for.
"""

from cpdrun.report.write import Report, write_report
from cpdrun.shell.called import is_function_too
from cpdrun.study.errors import ReportError, ReportUsageError

__all__ = ["Report", "ReportError", "ReportUsageError", "write_report"]

is_function_too(__name__)
