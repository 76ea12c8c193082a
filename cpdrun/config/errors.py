"""The error that is raised if a configuration, or a key of one, is wrong."""

from custom_fp.suggestions import did_you_mean

from cpdrun.errors import UserError

__all__ = ["ConfigError", "did_you_mean"]


class ConfigError(UserError):
    """A configuration is wrong. The message is one line without a traceback."""
