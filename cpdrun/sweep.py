"""Plan a sweep from Python: `plan` returns the runs of a sweep, and `write_manifest` records them in its folder.

The code is in `cpdrun.config`. `cpdrun.sweep(...)` also trains the runs (`cpdrun.api.sweep`).
"""

from cpdrun.config.manifest import listed, write_manifest, write_question
from cpdrun.config.plan import Plan, PlannedRun, plan
from cpdrun.shell.callable_package import is_function_too

__all__ = ["Plan", "PlannedRun", "listed", "plan", "write_manifest", "write_question"]

is_function_too(__name__)
