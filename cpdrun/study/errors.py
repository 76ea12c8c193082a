"""What `cpdrun report` cannot answer, in one line for the user."""

from cpdrun.errors import FAILED, USAGE, UserError


class ReportError(UserError):
    """There is nothing to report."""

    exit_code = FAILED


class ReportUsageError(ReportError):
    """The question itself is wrong: an unknown kind of file, axis or metric."""

    exit_code = USAGE
