"""Read run directories, form the groups of runs that are compared, and compute the verdicts."""

from cpdrun.errors import FAILED, USAGE, UserError


class ReportError(UserError):
    """There is nothing to report."""

    exit_code = FAILED


class ReportUsageError(ReportError):
    """The question contains a mistake, such as an unknown kind of file, axis or metric."""

    exit_code = USAGE
