"""What `cpdrun report` cannot answer, in one line for the user."""


class ReportError(Exception):
    """There is nothing to report, or the question cannot be put; the message is for the user, exit code 1."""
