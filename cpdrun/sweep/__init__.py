"""The planning of a sweep, before any run starts.

`request` and `runs` determine the runs, and `manifest` records them in sweep.yaml. `run_states`, `requirements`,
`ignored_settings`, and `dry_run` tell the user what is already done, what is missing, which settings have no effect,
and what would run.
"""

from cpdrun.shell.callable_package import is_function_too
from cpdrun.sweep.manifest import listed, write_manifest, write_question
from cpdrun.sweep.runs import Plan, PlannedRun, plan

__all__ = ["Plan", "PlannedRun", "listed", "plan", "write_manifest", "write_question"]

is_function_too(__name__)
