"""What a checker reads of cpdrun/__init__.py, whose names are looked up when they are asked for."""

from cpdrun.api import *  # noqa: F403 (its __all__)
from cpdrun.attach.run import attach as attach
from cpdrun.errors import Stopped as Stopped
from cpdrun.errors import UserError as UserError

__version__: str
