"""The errors of `cpdrun report`, whose messages the user sees."""

from cpdrun.errors import FAILED, USAGE, UserError


class ReportError(UserError):
    """There is nothing to report."""

    exit_code = FAILED


class ReportUsageError(ReportError):
    """The question contains a mistake, such as an unknown kind of file, axis or metric."""

    exit_code = USAGE
