"""The names of cpdrun/__init__.py for type checkers. At run time, they are imported when they are used."""

from cpdrun import api as api
from cpdrun.api import *  # noqa: F403 (its __all__)
from cpdrun.attach.run import attach as attach
from cpdrun.errors import Stopped as Stopped
from cpdrun.errors import UserError as UserError

__version__: str
