"""What `cpdrun report` cannot answer, in one line for the user."""


class ReportError(Exception):
    """There is nothing to report; the message is for the user, exit code 1."""


class ReportUsageError(ReportError):
    """The question itself is wrong: an unknown kind of file, axis or metric; exit code 2."""
