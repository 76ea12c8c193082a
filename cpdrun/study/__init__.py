"""Read run directories, form the groups of runs that are compared, and compute the verdicts."""

from cpdrun.errors import FAILED, USAGE, UserError


class ReportError(UserError):
    """A report cannot be made, for example because no run has finished."""

    exit_code = FAILED


class ReportUsageError(ReportError):
    """What the user typed contains a mistake, such as an unknown axis, metric, or kind of file."""

    exit_code = USAGE
