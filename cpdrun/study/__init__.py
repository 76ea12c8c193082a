"""Read run directories, sort runs into groups, and compute the verdicts."""

from cpdrun.errors import FAILED, USAGE, UserError


class ReportError(UserError):
    """A report cannot be made, for example because no run has finished."""

    exit_code = FAILED


class ReportUsageError(ReportError):
    """The user typed an unknown axis, metric, or kind of file."""

    exit_code = USAGE
