"""The error that is raised if a configuration or one of its keys is wrong."""

from custom_fp.suggestions import did_you_mean

from cpdrun.errors import UserError

__all__ = ["ConfigError", "did_you_mean"]


class ConfigError(UserError):
    """Raised for a wrong configuration. The message is shown as one line without a traceback."""
