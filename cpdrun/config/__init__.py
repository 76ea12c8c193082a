"""What a run is: composed from conf/ and what was typed, checked, and named by its content."""

from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import run_name
from cpdrun.config.schema import validate

__all__ = ["Composer", "ConfigError", "run_name", "validate"]
