"""A mistake of the user's, told in one line."""

from custom_fp.words import did_you_mean

from cpdrun.errors import UserError

__all__ = ["ConfigError", "did_you_mean"]


class ConfigError(UserError):
    """What was given, what is allowed, what to do: one line, shown without a traceback."""
